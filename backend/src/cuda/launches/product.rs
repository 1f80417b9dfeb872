//! Products with weights: GEMV, the same with weights in 4 bits, and the flat product.

use std::slice;

use plimsoll_core::Dtype;
use plimsoll_core::compression::GROUP_ELEMENTS;
use plimsoll_core::hardware::{FLAT_DEPTH, PACKED_DEPTH};

use super::{WARP, launch, named};
use crate::cuda::arguments::Arguments;
use crate::cuda::tile::{Cut, THIN_ROWS};
use crate::cuda::{CudaError, Launch};

/// As in `gemv.cu`: warps of a block at most.
const GEMV_WARPS: usize = 4;

/// Elements of a row that a warp of GEMV takes at a time.
const GEMV_STEP: usize = 8 * WARP;

/// As in `packed.cu`: columns that a lane takes at a time, and warps of a block at most.
const PACKED_COLUMNS: usize = PACKED_DEPTH as usize;
const PACKED_WARPS: usize = 4;

/// Elements of a row that a warp of the flat product for few rows takes at a time.
const THIN_STEP: usize = 64;

/// Depth up to which weights are shallow, and rows of them from which blocks are more than a GPU has at once.
const SHALLOW: usize = 8192;
const MANY_ROWS: usize = 4096;

/// As in `flat.cu`: columns of a tile along k, and elements from a row of a tile to the next.
const TILE_STRIDE: usize = 72;

/// `y [m, n] = x [m, k] times weights [n, k]`, and a bias.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    /// Of x, the weights and the bias: f16 or bf16.
    pub dtype: Dtype,
    /// `[m, k]`.
    pub x: u64,
    /// `[n, k]`.
    pub weights: u64,
    /// They are in 4-bit groups, which GEMV alone reads.
    pub packed: bool,
    /// `[n]`; 0: none.
    pub bias: u64,
    /// `[m, n]`.
    pub y: u64,
    /// m, n and k.
    pub shape: [usize; 3],
    /// y is f32, and not of the stored type.
    pub wide: bool,
    /// What the stream was given before writes the weights, and nothing since then that waits for the end of that before it begins.
    pub fresh: bool,
}

impl Product {
    fn arguments(&self) -> Arguments {
        Arguments::new()
            .wides([self.x, self.weights, self.bias, self.y])
            .counts(self.shape)
            .counts([usize::from(self.wide)])
    }

    /// Whether one launch may compute another one as well.
    fn joins(&self, other: &Product) -> bool {
        let [m, _, k] = self.shape;
        let all = |it: &Product| (it.dtype, it.x, it.packed, it.wide);
        all(self) == all(other) && [m, k] == [other.shape[0], other.shape[2]]
    }
}

/// As in `product.cuh`: products that share x at most.
const JOINED: usize = 3;

/// The most rows for which products that share x are computed in one launch: of more the vendor's library may be better, or tiles.
pub const JOINED_ROWS: usize = THIN_ROWS;

/// One product, or some that share x, in one launch.
#[derive(Debug, Clone, Copy)]
struct Joined<'p>(&'p [Product]);

impl<'p> Joined<'p> {
    fn new(products: &'p [Product]) -> Result<Joined<'p>, CudaError> {
        let are_alike = |first: &Product| products.iter().all(|other| first.joins(other));
        match products.first().is_some_and(are_alike) && products.len() <= JOINED {
            true => Ok(Joined(products)),
            false => Err(CudaError::Shape {
                what: "the number of products of a launch",
                found: products.len(),
                takes: "one to three of the same rows",
            }),
        }
    }

    fn first(&self) -> &'p Product {
        &self.0[0]
    }

    /// All columns together.
    fn columns(&self) -> usize {
        self.0.iter().map(|product| product.shape[1]).sum()
    }

    /// What the kernel is given where so many columns take so many blocks, and how many all take.
    fn arguments(&self, blocks_of: impl Fn(usize) -> usize) -> (Arguments, usize) {
        let Product { x, shape, wide, .. } = *self.first();
        let (mut arguments, mut end) = (Arguments::new().wide(x), 0);
        for index in 0..JOINED {
            let product = self.0.get(index);
            let [weights, bias, y] = product.map_or([0; 3], |it| [it.weights, it.bias, it.y]);
            let n = product.map_or(0, |it| it.shape[1]);
            end += blocks_of(n);
            arguments = arguments.wides([weights, bias, y]).counts([n, end]);
        }
        let [m, _, k] = shape;
        (arguments.counts([m, k, usize::from(wide)]), end)
    }

    /// A launch of a kernel that loads weights before it waits for what came before, which it may unless some are fresh.
    fn launch(
        &self,
        (source, kernel): (&'static str, String),
        (grid, threads): ([usize; 3], usize),
        arguments: Arguments,
    ) -> Launch {
        Launch {
            early: !self.0.iter().any(|product| product.fresh),
            ..launch(source, kernel, (grid, threads), arguments)
        }
    }
}

/// By whole rows of weights, of which up to 8 rows of x share a reading; weights in 4 bits are read as they are, by up to 4 at once.
///
/// # Errors
/// [`CudaError::Type`]; [`CudaError::Shape`] for packed weights whose depth is no multiple of [`PACKED_DEPTH`].
pub fn gemv(product: &Product) -> Result<Launch, CudaError> {
    gemv_joined(slice::from_ref(product))
}

/// The same of some that share x.
///
/// # Errors
/// As [`gemv`]; [`CudaError::Shape`] for more than three, none, or some that do not.
pub fn gemv_joined(products: &[Product]) -> Result<Launch, CudaError> {
    let joined = Joined::new(products)?;
    let first = joined.first();
    if first.packed {
        return by_bands(joined);
    }
    let rows = first.shape[0].clamp(1, 8).next_power_of_two();
    let kernel = format!("{}_m{rows}", named("gemv", first.dtype)?);
    Ok(by_rows(joined, kernel, rows))
}

/// What stands in for [`gemv`] of several rows in bf16 where tensor cores do not know it.
///
/// # Errors
/// [`CudaError::Type`].
pub fn gemv_plain(product: &Product) -> Result<Launch, CudaError> {
    let kernel = format!("{}_m4", named("gemv_plain", product.dtype)?);
    Ok(by_rows(Joined::new(slice::from_ref(product))?, kernel, 4))
}

fn by_rows(joined: Joined<'_>, kernel: String, rows: usize) -> Launch {
    let [m, _, k] = joined.first().shape;
    let warps = k.div_ceil(GEMV_STEP).clamp(1, GEMV_WARPS);
    // As in `gemv.cu`.
    let columns = match rows {
        1 | 2 => 1,
        4 => 2,
        _ => 3,
    };
    let (arguments, blocks) = joined.arguments(|n| n.div_ceil(columns));
    let shape = ([blocks, m.div_ceil(rows), 1], warps * WARP);
    joined.launch(("gemv", kernel), shape, arguments)
}

fn by_bands(joined: Joined<'_>) -> Result<Launch, CudaError> {
    let Product { dtype, shape, .. } = *joined.first();
    let [m, _, k] = shape;
    check_packed(k)?;
    let rows = m.clamp(1, 4).next_power_of_two();
    let kernel = format!("{}_m{rows}", named("gemv_packed", dtype)?);
    // As in `packed.cu`: blocks that share a band of 64 rows.
    let of_band = if rows == 4 { 8 } else { 4 };
    let warps = k.div_ceil(PACKED_COLUMNS * WARP).clamp(1, PACKED_WARPS);
    let bands = |n: usize| n.div_ceil(GROUP_ELEMENTS as usize);
    let (arguments, blocks) = joined.arguments(|n| bands(n) * of_band);
    // Those that share weights are neighbours, so that they come from memory once.
    let shape = ([m.div_ceil(rows), blocks, 1], warps * WARP);
    Ok(joined.launch(("packed", kernel), shape, arguments))
}

/// Whether GEMV computes weights of this depth that are in 4 bits.
///
/// # Errors
/// [`CudaError::Shape`].
fn check_packed(k: usize) -> Result<(), CudaError> {
    match k.is_multiple_of(PACKED_COLUMNS) {
        true => Ok(()),
        false => Err(CudaError::Shape {
            what: "the depth of a product with 4-bit weights",
            found: k,
            takes: "multiples of 16",
        }),
    }
}

/// On tensor cores, for weights whose depth is whole eights.
///
/// # Errors
/// [`CudaError::Type`]; [`CudaError::Shape`] for another depth.
pub fn flat(product: &Product, cut: Cut) -> Result<Launch, CudaError> {
    match cut {
        Cut::Thin => thin_joined(slice::from_ref(product)),
        Cut::Tiles(columns) => tiled(product, columns),
    }
}

/// Up to 16 rows share a reading of the weights, which goes straight to tensor cores; of some products that share x.
///
/// # Errors
/// As [`flat`]; [`CudaError::Shape`] for more than three, none, or some that do not.
pub fn thin_joined(products: &[Product]) -> Result<Launch, CudaError> {
    let joined = Joined::new(products)?;
    let eights = eights(joined.first(), 2);
    let name = named("thin", joined.first().dtype)?;
    let is_deep = joined.first().shape[2] > SHALLOW;
    // As in `thin.cu`: columns of a block, and warps that split k, at most.
    let (wide, columns, most) = match eights {
        // Each eight columns of deep weights would read as many bytes of x as of themselves. Of few columns all blocks of sixteen are
        // still under way at once.
        1 if is_deep && joined.columns() <= MANY_ROWS => ("_wide", 16, 8),
        // Half the warps leave room for blocks of the kernel that follows, which is worth more than to have all of this one under way.
        1 if !is_deep && joined.columns() >= MANY_ROWS => ("", 8, 8),
        1 => ("", 8, 16),
        _ => ("", 16, 8),
    };
    without_tiles(
        joined,
        format!("{name}_e{eights}{wide}"),
        [eights, columns, most],
    )
}

/// Up to 32 rows share a reading of the weights, a block having so many columns ([`crate::cuda::tile::columns`]).
fn tiled(product: &Product, columns: usize) -> Result<Launch, CudaError> {
    let eights = eights(product, 4);
    let name = named("flat", product.dtype)?;
    with_tiles(
        product,
        format!("{name}_n{columns}_e{eights}"),
        [columns, eights],
    )
}

/// Eights of rows that a block has, of at most so many.
fn eights(product: &Product, most: usize) -> usize {
    let eights = product.shape[0].div_ceil(8);
    eights.clamp(1, most).next_power_of_two()
}

/// What stands in for tiles of a flat product in bf16 where tensor cores do not know it.
///
/// # Errors
/// As [`flat`].
pub fn flat_plain(product: &Product) -> Result<Launch, CudaError> {
    let name = named("flat_plain", product.dtype)?;
    with_tiles(product, format!("{name}_n64_e2"), [64, 2])
}

/// The same for few rows.
///
/// # Errors
/// As [`flat`].
pub fn thin_plain(product: &Product) -> Result<Launch, CudaError> {
    let name = named("thin_plain", product.dtype)?;
    let joined = Joined::new(slice::from_ref(product))?;
    without_tiles(joined, format!("{name}_e2"), [2, 16, 8])
}

/// Whether the flat product computes weights of this depth.
///
/// # Errors
/// [`CudaError::Shape`].
fn check_depth(k: usize) -> Result<(), CudaError> {
    match k.is_multiple_of(FLAT_DEPTH as usize) {
        true => Ok(()),
        false => Err(CudaError::Shape {
            what: "the depth of a flat product",
            found: k,
            takes: "multiples of 8",
        }),
    }
}

/// A block having so many eights of rows, columns, and warps at most.
fn without_tiles(
    joined: Joined<'_>,
    kernel: String,
    [eights, columns, most]: [usize; 3],
) -> Result<Launch, CudaError> {
    let [m, _, k] = joined.first().shape;
    check_depth(k)?;
    let warps = k.div_ceil(THIN_STEP).clamp(1, most);
    let (arguments, blocks) = joined.arguments(|n| n.div_ceil(columns));
    let shape = ([blocks, m.div_ceil(8 * eights), 1], warps * WARP);
    Ok(joined.launch(("thin", kernel), shape, arguments))
}

fn with_tiles(
    product: &Product,
    kernel: String,
    [columns, eights]: [usize; 2],
) -> Result<Launch, CudaError> {
    let [m, n, k] = product.shape;
    check_depth(k)?;
    let buffers = if columns >= 128 { 2 } else { 4 };
    let tile_bytes = (columns + 8 * eights) * TILE_STRIDE * 2;
    let grid = [n.div_ceil(columns), m.div_ceil(8 * eights), 1];
    let shape = (grid, columns / 16 * WARP);
    Ok(Launch {
        shared_bytes: (buffers * tile_bytes) as u32,
        // Blocks that come early go where there is room at that moment, and these are few and long: a fifth slower with 64 rows.
        early: false,
        ..launch("flat", kernel, shape, product.arguments())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(shape: [usize; 3]) -> Product {
        Product {
            dtype: Dtype::F16,
            x: 0,
            weights: 0,
            bias: 0,
            y: 0,
            shape,
            wide: false,
            packed: false,
            fresh: false,
        }
    }

    /// Section 4: rows are padded to 8, and not to the 64 of a conventional tile.
    #[test]
    fn a_flat_product_pads_rows_to_eights() {
        let of_64 = |m: usize| m as f64 / m.next_multiple_of(64) as f64;
        // The useful shares are the same for all of the paper's shapes.
        let shapes = [[12288, 4096], [4096, 4096], [11008, 4096], [4096, 11008]];
        let rows = [(1, 0.125, 0.015_625), (8, 1.0, 0.125)];
        let all = shapes.iter().flat_map(|shape| rows.map(|row| (shape, row)));
        for ([n, k], (m, useful, useful_of_64)) in all {
            let product = product([m, *n, *k]);
            for cut in [Cut::Thin, Cut::Tiles(32)] {
                let launch = flat(&product, cut).expect("a launch");
                assert!(launch.kernel.contains("_e1"), "{}", launch.kernel);
                let padded = 8 * launch.grid[1] as usize;
                assert_eq!(m as f64 / padded as f64, useful);
            }
            assert_eq!(of_64(m), useful_of_64);
        }
    }

    /// What loads weights before it waits must not do so while a kernel still writes them.
    #[test]
    fn a_product_begins_early_unless_its_weights_are_fresh() {
        for (fresh, dtype) in [(false, Dtype::F16), (true, Dtype::Bf16)] {
            let product = Product {
                dtype,
                fresh,
                ..product([8, 4096, 4096])
            };
            for launch in [
                gemv(&product),
                gemv(&Product {
                    packed: true,
                    ..product
                }),
                flat(&product, Cut::Thin),
                thin_plain(&Product {
                    dtype: Dtype::Bf16,
                    ..product
                }),
            ] {
                assert_eq!(launch.expect("a launch").early, !fresh);
            }
            let tiled = flat(&product, Cut::Tiles(64)).expect("a launch");
            assert!(!tiled.early, "its blocks are few and long");
        }
    }

    /// Warps that split short rows would have nothing to do.
    #[test]
    fn short_rows_have_few_warps() {
        let threads = |m, k| {
            let product = product([m, 4096, k]);
            let thin = flat(&product, Cut::Thin).expect("a launch");
            [gemv(&product).expect("a launch").threads, thin.threads]
        };
        assert_eq!(threads(1, 64), [32, 32]);
        assert_eq!(threads(8, 768), [96, 256]);
        assert_eq!(threads(8, 4096), [128, 256]);
        assert_eq!(threads(8, 11008), [128, 256]);
        let few_rows = flat(&product([8, 1024, 4096]), Cut::Thin).expect("a launch");
        assert_eq!(few_rows.threads, 512);
        let grid = |n| {
            flat(&product([8, n, 11008]), Cut::Thin)
                .expect("a launch")
                .grid[0]
        };
        assert_eq!([4096, 5120].map(grid), [256, 640]);
        assert_eq!(threads(16, 11008), [128, 256]);
    }

    /// Four or eight blocks have a band of 64 rows, whose last need not be full.
    #[test]
    fn blocks_share_a_band_of_packed_weights() {
        let packed = |m, k| Product {
            packed: true,
            ..product([m, 100, k])
        };
        let grid = |m| gemv(&packed(m, 2048)).expect("a launch").grid;
        let grids = [[1, 8, 1], [1, 8, 1], [1, 16, 1], [3, 16, 1]];
        assert_eq!([1, 2, 4, 9].map(grid), grids);
        let error = gemv(&packed(1, 72)).unwrap_err().to_string();
        let expected = "is 72, and CUDA kernels take multiples of 16";
        assert!(error.contains(expected), "{error}");
    }

    /// Each begins with a block of its own, also where the one before ends within one.
    #[test]
    fn products_that_share_x_are_one_launch() {
        let of = |ns: &[usize]| {
            ns.iter()
                .map(|n| product([8, *n, 4096]))
                .collect::<Vec<_>>()
        };
        let grid = |launch: Result<Launch, CudaError>| launch.expect("a launch").grid;
        assert_eq!(grid(gemv_joined(&of(&[4, 4, 3]))), [2 + 2 + 1, 1, 1]);
        assert_eq!(grid(thin_joined(&of(&[20, 8]))), [3 + 1, 1, 1]);
        let packed = |it: Product| Product { packed: true, ..it };
        let bands: Vec<Product> = of(&[100, 64]).into_iter().map(packed).collect();
        assert_eq!(grid(gemv_joined(&bands)), [2, 8 * (2 + 1), 1]);
        let mut fresh = of(&[4, 4]);
        fresh[1].fresh = true;
        assert!(!gemv_joined(&fresh).expect("a launch").early);
        let mut others = of(&[4, 4]);
        others[1].x = 8;
        for products in [others, of(&[]), of(&[4; 4])] {
            assert!(gemv_joined(&products).is_err());
            assert!(thin_joined(&products).is_err());
        }
    }

    #[test]
    fn a_flat_product_needs_whole_eights() {
        assert!(check_depth(4096).is_ok());
        let error = check_depth(100).unwrap_err();
        let expected = "the depth of a flat product is 100, and CUDA kernels take multiples of 8";
        assert_eq!(error.to_string(), expected);
    }
}
