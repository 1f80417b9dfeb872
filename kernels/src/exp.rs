//! The exponential, in operations that compile to the same bits everywhere and vectorise.

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts: the first has few enough bits that its product with the exponent is exact.
const LN_2_HIGH: f32 = 355.0 / 512.0;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits.
const ROUND: f32 = 12_582_912.0;

/// e^x, within 2 units in the last place; zero below -87.3, infinite above 88.3 (a little early).
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let clamped = if x > 89.0 { 89.0 } else { x };
    let shifted = clamped.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, clamped));
    let mut p = 1.987_569_1e-4_f32;
    p = p.mul_add(r, 1.398_199_9e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_6e-1);
    p = p.mul_add(r, 0.5);
    let mantissa = p.mul_add(r * r, r) + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x < -87.3 { 0.0 } else { mantissa * power }
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn it_is_within_two_units_of_the_last_place() {
        let mut x = -87.29_f32;
        while x < 88.3 {
            let exact = f64::from(x).exp();
            let ulp = f64::from((exact as f32).next_up() - exact as f32);
            let error = (f64::from(exp(x)) - exact).abs() / ulp;
            assert!(error < 2.0, "exp({x}) is off by {error} ulp");
            x += 0.003_71;
        }
    }

    #[test]
    fn the_ends_are_zero_infinity_and_nan() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-88.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(100.0), f32::INFINITY);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }
}
