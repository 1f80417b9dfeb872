//! What kernels pack takes what plans count with.

use half::f16;
use plimsoll_backend::kernels::Elements;
use plimsoll_backend::kernels::groups::{head_bytes, pack_matrix};
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::model::{TensorRole, TensorSpec};

#[test]
fn sizes_are_those_that_plans_count_with() {
    for (rows, cols) in [(2, 5), (64, 16), (65, 17), (512, 64)] {
        let tensor = TensorSpec {
            role: TensorRole::UpWeight,
            name: "w".into(),
            rows,
            cols,
        };
        let bytes = Compression::of(true, false)
            .tensor_bytes(&tensor, Dtype::F16)
            .0;
        let mut packed = vec![f16::ZERO; bytes as usize / 2];
        let elements = vec![0.5; (rows * cols) as usize];
        let into = bytemuck::cast_slice_mut(&mut packed);
        pack_matrix(Elements::F32(&elements), cols as usize, into).unwrap();
        let short = &mut into[2..];
        let error = pack_matrix(Elements::F32(&elements), cols as usize, short).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("the halves of a packed matrix")
        );
    }
    for head_dim in [1, 16, 64, 80, 128] {
        let bytes = Compression::of(false, true).cache_head_bytes(head_dim, Dtype::F16);
        assert_eq!(bytes.0 as usize, head_bytes(head_dim as usize));
    }
}
