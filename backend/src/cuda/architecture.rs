//! For which architecture kernels are compiled.

use super::CudaError;
use super::raw::{BEGINS_EARLY, Compiler, Device};

/// The first compute capability, 10 * major + minor, on which the kernels run: Turing's, whose tensor cores multiply 16 x 8 x 8.
const FIRST: i32 = 75;

/// Those of chips with a CPU, whose CUBINs run on no card, nor a card's on them.
const TEGRA: [i32; 6] = [53, 62, 72, 87, 101, 110];

/// What a compiler is told for a device: `sm_90` gives a CUBIN, `compute_90` PTX, which the driver compiles.
///
/// # Errors
/// [`CudaError::Capability`] where kernels do not run on it, or are not compiled for it.
pub fn target(device: &Device, compiler: Compiler) -> Result<String, CudaError> {
    of(device.capability()?, &compiler.capabilities()?)
}

/// By what the compiler knows, in ascending order; nothing where it does not say.
fn of(gpu: i32, known: &[i32]) -> Result<String, CudaError> {
    let refused = |why| Err(CudaError::Capability { found: gpu, why });
    if gpu < FIRST {
        return refused("kernels need 7.5 (Turing) or later: use another GPU, or --backend cpu");
    }
    if known.is_empty() || known.contains(&gpu) {
        return Ok(format!("sm_{gpu}"));
    }
    let mut of_card = known.iter().filter(|known| !TEGRA.contains(*known));
    let Some(nearest) = of_card.rfind(|known| (FIRST..gpu).contains(*known)) else {
        return refused("NVRTC compiles for later ones only: install NVRTC of an earlier CUDA");
    };
    if gpu >= BEGINS_EARLY && *nearest < BEGINS_EARLY {
        return refused("NVRTC is too old for it: install that of CUDA 11.8 or later");
    }
    // A CUBIN runs on cards of the same major version, and of no other.
    match nearest / 10 == gpu / 10 && !TEGRA.contains(&gpu) {
        true => Ok(format!("sm_{nearest}")),
        false => Ok(format!("compute_{nearest}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_newer_than_its_compiler_gets_what_it_can_run() {
        let cuda_12_4 = [50, 52, 60, 70, 75, 80, 86, 87, 89, 90];
        for (gpu, known, target) in [
            (75, &cuda_12_4[..], "sm_75"),
            (90, &cuda_12_4, "sm_90"),
            (120, &cuda_12_4, "compute_90"),
            (103, &[75, 80, 90, 100, 101, 120], "sm_100"),
            (89, &[75, 80, 86, 87], "sm_86"),
            (87, &[75, 80, 86], "compute_86"),
            (121, &[75, 80, 90, 100, 120], "sm_120"),
            (89, &[], "sm_89"),
        ] {
            assert_eq!(of(gpu, known).as_deref(), Ok(target));
        }
    }

    #[test]
    fn a_gpu_on_which_no_kernel_runs_is_refused_by_its_capability() {
        for (gpu, known, says) in [
            (70, &[50, 70, 75][..], ["7.0", "--backend cpu"]),
            (61, &[], ["6.1", "Turing"]),
            (75, &[80, 90], ["7.5", "earlier CUDA"]),
            (120, &[75, 80, 86], ["12.0", "CUDA 11.8"]),
        ] {
            let error = of(gpu, known).unwrap_err().to_string();
            for part in says {
                assert!(error.contains(part), "{error}");
            }
        }
    }
}
