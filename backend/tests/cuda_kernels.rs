//! The CUDA kernels' logic on a CPU: their sources compiled as C++ over an emulator of threads, barriers, shuffles,
//! copies behind a thread's back and tensor cores (`tests/cuda/emulator.h`).
#![allow(unsafe_code)]

mod cuda {
    pub mod emulator;
}

use cuda::emulator::{Generation, emulator, emulator_of};
use half::f16;
use plimsoll_backend::cuda::arguments::Arguments;
use plimsoll_backend::cuda::launches::{Attention, HeldAs, Range};
use plimsoll_backend::cuda::{CudaError, KernelDevice, Launch};
use plimsoll_backend::selftest::{self, Wrong};
use plimsoll_core::Dtype;

#[test]
fn every_kernel_passes_the_self_test() {
    all_kernels_pass(Generation::Ampere);
}

#[test]
fn every_kernel_passes_the_self_test_as_a_t4_has_it() {
    all_kernels_pass(Generation::Turing);
}

fn all_kernels_pass(generation: Generation) {
    let Some(mut device) = emulator_of(generation) else {
        return;
    };
    let outcomes = selftest::cuda(&mut device);
    assert!(outcomes.len() > 10);
    for outcome in &outcomes {
        assert_eq!(outcome.wrong, None, "{}", outcome.name);
        // No vendor's library is emulated.
        let expected = outcome.name != "vendor product";
        assert_eq!(outcome.cases > 0, expected, "{}", outcome.name);
    }
    let mut left = device.names();
    left.retain(|name| !device.launched.contains(name));
    assert_eq!(left, Vec::<String>::new(), "kernels that nothing tests");
}

/// A device that has one kernel only, and forgets its last block.
struct Faulty<D> {
    device: D,
    kernel: &'static str,
}

impl<D: KernelDevice> KernelDevice for Faulty<D> {
    fn take(&mut self, bytes: usize) -> Result<u64, CudaError> {
        self.device.take(bytes)
    }
    fn clear(&mut self) {
        self.device.clear();
    }
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), CudaError> {
        self.device.write(address, bytes)
    }
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.device.read(address, bytes)
    }
    fn launch(&mut self, launch: &Launch) -> Result<(), CudaError> {
        if launch.kernel != self.kernel {
            return Err(CudaError::NoKernel(launch.kernel.clone()));
        }
        let mut launch = launch.clone();
        launch.grid[0] -= 1;
        self.device.launch(&launch)
    }
    fn multiply(
        &mut self,
        product: &plimsoll_backend::cuda::raw::Product,
    ) -> Result<bool, CudaError> {
        self.device.multiply(product)
    }
}

#[test]
fn the_self_test_finds_what_is_wrong() {
    let Some(device) = emulator() else { return };
    let kernel = "rms_norm_f16";
    let mut faulty = Faulty { device, kernel };
    for outcome in selftest::cuda(&mut faulty) {
        let wrong = outcome.wrong;
        match outcome.name {
            "RMSNorm" => assert!(matches!(wrong, Some(Wrong::Value { .. })), "{wrong:?}"),
            "vendor product" => assert_eq!(wrong, None),
            _ => assert!(matches!(wrong, Some(Wrong::Cuda(_))), "{wrong:?}"),
        }
    }
}

#[test]
fn the_emulator_knows_a_wrong_call() {
    let Some(mut device) = emulator() else { return };
    let mut launch = Launch {
        source: "norm",
        kernel: "no_norm".to_owned(),
        grid: [1, 1, 1],
        threads: 32,
        shared_bytes: 0,
        early: false,
        arguments: Arguments::new(),
    };
    let error = device.launch(&launch).unwrap_err().to_string();
    assert!(error.contains("no kernel is called no_norm"), "{error}");
    launch.kernel = "rms_norm_f16".to_owned();
    let error = device.launch(&launch).unwrap_err().to_string();
    assert!(error.contains("takes 40 bytes of arguments"), "{error}");
}

/// Elements a head in [`figure_6`].
const WIDTH: usize = 8;

fn halves(numbers: &[f32]) -> Vec<u8> {
    let bytes = numbers.iter().map(|x| f16::from_f32(*x).to_ne_bytes());
    bytes.flatten().collect()
}

/// An attention with given scores, two parts of two positions, whose values are 1, 2, 3, 4.
fn with_scores(device: &mut impl KernelDevice, scores: [f32; 4]) -> Attention {
    device.clear();
    let mut put = |bytes: &[u8]| {
        let address = device.take(bytes.len()).unwrap();
        device.write(address, bytes).unwrap();
        address
    };
    let mut records = Vec::new();
    for (score, value) in scores.into_iter().zip([1.0, 2.0, 3.0, 4.0]) {
        let mut key = [0.0; WIDTH];
        key[0] = score;
        records.extend(halves(&key));
        records.extend(halves(&[value; WIDTH]));
    }
    let page = put(&records);
    let range = Range {
        phi: 6.0,
        low: -3.0,
        high: 3.0,
    };
    let mut query = [0.0; WIDTH];
    query[0] = 1.0;
    Attention {
        dtype: Dtype::F16,
        held: HeldAs::Whole,
        queries: put(&halves(&query)),
        pages: put(&page.to_ne_bytes()),
        page_ends: put(&4_u32.to_ne_bytes()),
        firsts: 0,
        numerators: put(&[0xff; 2 * WIDTH * 4]),
        denominators: put(&[0xff; 8]),
        maxima: put(&[0xff; 8]),
        arrived: put(&[0; 4]),
        overflow: put(&[0; 4]),
        range: put(bytemuck::cast_slice(&range.words())),
        recomputed: put(&[0; 4]),
        y: put(&[0xff; 2 * WIDTH]),
        page_count: 1,
        row_start: 0,
        rows: 1,
        kv_heads: 1,
        group: 1,
        head_dim: WIDTH,
        context_len: 4,
        window: 0,
        record_bytes: 4 * WIDTH,
        splits: 2,
        part: 2,
        scale: 1.0,
    }
}

/// The number at an address.
fn float(device: &mut impl KernelDevice, address: u64) -> f64 {
    let mut bytes = [0; 4];
    device.read(address, &mut bytes).unwrap();
    f64::from(f32::from_ne_bytes(bytes))
}

/// What attention makes of given scores: the result, whether it was computed again, and the partial numerators and
/// denominators.
fn figure_6(device: &mut impl KernelDevice, scores: [f32; 4]) -> (f64, bool, [[f64; 2]; 2]) {
    let attention = with_scores(device, scores);
    device.launch(&attention.launch().unwrap()).unwrap();
    let next_split = |address, bytes| [address, address + bytes as u64];
    let numerators = next_split(attention.numerators, 4 * WIDTH);
    let denominators = next_split(attention.denominators, 4);
    let sums = [numerators, denominators].map(|both| both.map(|at| float(device, at)));
    let mut again = [0; 4];
    device.read(attention.recomputed, &mut again).unwrap();
    let mut result = [0; 2];
    device.read(attention.y, &mut result).unwrap();
    let result = f16::from_ne_bytes(result).to_f64();
    (result, again != [0; 4], sums)
}

#[test]
fn parts_that_leave_positions_out_are_refused() {
    let Some(mut device) = emulator() else { return };
    let attention = with_scores(&mut device, [0.0; 4]);
    for (splits, part) in [(1, 3), (2, 1), (2, 0)] {
        let short = Attention {
            splits,
            part,
            ..attention
        };
        assert!(matches!(short.launch(), Err(CudaError::Shape { .. })));
    }
    let seen = Attention {
        splits: 1,
        part: 3,
        window: 3,
        ..attention
    };
    assert!(seen.launch().is_ok());
}

fn assert_near(found: f64, expected: f64, within: f64) {
    let off = (found - expected).abs();
    assert!(off <= within * expected, "{found} for {expected}");
}

/// FlashDecoding++ Figure 6: a = -3, b = 3, phi = 6, in two partial vectors. Softmax results are those of exact
/// arithmetic.
#[test]
fn figure_6_of_flash_decoding_plus_plus() {
    let Some(mut device) = emulator() else { return };
    let (x, again, [numerators, denominators]) = figure_6(&mut device, [4.0, 5.0, 6.0, 7.0]);
    assert!(!again);
    assert_near(numerators[0], 0.871_094_165_579_497, 1e-6);
    assert_near(numerators[1], 13.873_127_313_836_2, 1e-6);
    assert_near(denominators[0], 0.503_214_724_408_055, 1e-6);
    assert_near(denominators[1], 3.718_281_828_459_05, 1e-6);
    assert_near(x, 3.492_652_734_585_77, 1e-3);
    // The first element already meets "at most a"; which one is found first is not the paper's point.
    let (y, again, _) = figure_6(&mut device, [3.0, 6.0, 9.0, 6.0]);
    assert!(again);
    assert_near(y, 2.995_501_573_106_69, 1e-3);
}
