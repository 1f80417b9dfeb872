//! The driver, its GPUs and how they are linked, and the libraries that are loaded beside it.

use std::fs;
use std::path::Path;

use plimsoll_core::units::Bytes;

use super::{Finding, State};
use crate::cuda::raw::{Attribute, Blas, Compiler, Device, LIBRARIES, Library};
use crate::cuda::{CudaError, architecture};

pub fn findings() -> Vec<Finding> {
    let mut findings: Vec<Finding> = LIBRARIES.into_iter().map(library).collect();
    let Ok((_, count)) = Device::count() else {
        return findings;
    };
    if count == 0 {
        let remedy = "see `nvidia-smi`, and CUDA_VISIBLE_DEVICES";
        findings.push(Finding::other("GPU", State::Missing, "none", remedy));
    }
    for index in 0..count {
        findings.extend(gpu(index).unwrap_or_else(|error| {
            let remedy = "see `nvidia-smi`, and `dmesg`";
            vec![Finding::other(
                "GPU",
                State::Missing,
                error.to_string(),
                remedy,
            )]
        }));
    }
    findings
}

fn name(library: Library) -> &'static str {
    match library {
        Library::Driver => "NVIDIA driver",
        Library::Compiler => "NVRTC",
        Library::Blas => "cuBLAS",
    }
}

/// What a library says of its version.
fn version(library: Library) -> Result<String, CudaError> {
    match library {
        Library::Driver => {
            let (version, count) = Device::count()?;
            let (major, minor) = (version / 1000, version % 1000 / 10);
            Ok(format!("for CUDA {major}.{minor}, {count} GPUs"))
        }
        Library::Compiler => {
            let [major, minor] = Compiler::find()?.version()?;
            suits(library, major)?;
            Ok(format!("{major}.{minor}"))
        }
        Library::Blas => {
            let major = Blas::major()?;
            suits(library, major)?;
            Ok(format!("of CUDA {major}"))
        }
    }
}

/// Without a driver there is nothing to suit.
fn suits(library: Library, major: i32) -> Result<(), CudaError> {
    Device::count().map_or(Ok(()), |(driver, _)| library.suits(major, driver))
}

fn library(library: Library) -> Finding {
    let name = name(library);
    if !library.is_present() {
        let found = format!("no {}", library.name());
        return Finding::other(name, State::Missing, found, library.remedy());
    }
    match version(library) {
        Ok(version) => Finding::good(name, version),
        Err(error @ CudaError::Newer { found, driver, .. }) => {
            let found = format!("of CUDA {found}, and the driver is for CUDA {driver}");
            Finding::other(name, State::Missing, found, error.to_string())
        }
        Err(error) => Finding::other(name, State::Missing, error.to_string(), library.remedy()),
    }
}

fn gpu(index: u32) -> Result<Vec<Finding>, CudaError> {
    let device = Device::open(index)?;
    let capability = device.capability()?;
    let processors = device.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let [free, all] = device.memory()?.map(|bytes| Bytes(bytes as u64));
    let name = device.name()?;
    let found = format!(
        "{index}: {name}, sm_{capability}, {processors} multiprocessors, {free} of {all} free"
    );
    let target = Compiler::find().and_then(|compiler| architecture::target(&device, compiler));
    let folder = Path::new("/sys/bus/pci/devices").join(device.bus_address()?);
    Ok(vec![card(found, target), link(&folder)])
}

/// A GPU, and whether kernels can be compiled for it; a compiler that is missing has a finding of its own.
fn card(found: String, target: Result<String, CudaError>) -> Finding {
    const NAME: &str = "GPU";
    match target {
        Ok(target) if target.starts_with("compute") => {
            let found =
                format!("{found}; kernels are made for {target}, the last that NVRTC knows");
            let remedy = "install NVRTC of a later CUDA, though none later than the driver's";
            Finding::other(NAME, State::Weak, found, remedy)
        }
        Err(error @ CudaError::Capability { .. }) => {
            Finding::other(NAME, State::Missing, found, error.to_string())
        }
        _ => Finding::good(NAME, found),
    }
}

/// The link as the system shows it in a folder of the device's own.
fn link(folder: &Path) -> Finding {
    const NAME: &str = "GPU link";
    let read = |file: &str| {
        let text = fs::read_to_string(folder.join(file));
        text.map(|text| text.trim().to_owned()).ok()
    };
    let (now, most) = (read("current_link_width"), read("max_link_width"));
    let speed = read("current_link_speed").unwrap_or_else(|| "of unknown speed".to_owned());
    match (now, most) {
        (Some(now), Some(most)) if now == most => {
            Finding::good(NAME, format!("{now} lanes, {speed}"))
        }
        (Some(now), Some(most)) => {
            let found = format!("{now} of {most} lanes, {speed}");
            let remedy =
                "put the card into a slot with all its lanes: copies have that share of their rate";
            Finding::other(NAME, State::Weak, found, remedy)
        }
        _ => {
            let remedy = "look at `nvidia-smi -q`; a container may hide /sys";
            Finding::other(NAME, State::Weak, "the system does not show it", remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_with_fewer_lanes_than_it_could_is_weak() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
        assert_eq!(link(folder.path()).state, State::Weak);
        write("current_link_width", "8\n");
        write("max_link_width", "16\n");
        write("current_link_speed", "16.0 GT/s PCIe\n");
        let found = link(folder.path());
        assert_eq!(found.state, State::Weak);
        assert_eq!(found.found, "8 of 16 lanes, 16.0 GT/s PCIe");
        write("current_link_width", "16\n");
        assert_eq!(link(folder.path()).state, State::Good);
    }

    #[test]
    fn a_gpu_without_kernels_of_its_own_is_weak_or_of_no_use() {
        let of = |target| card("0: a card, sm_120".to_owned(), target);
        assert_eq!(of(Ok("sm_120".to_owned())).state, State::Good);
        let newer = of(Ok("compute_90".to_owned()));
        assert_eq!(newer.state, State::Weak);
        assert!(
            newer.found.contains("made for compute_90"),
            "{}",
            newer.found
        );
        let why = "kernels need 7.5";
        let older = of(Err(CudaError::Capability { found: 70, why }));
        assert_eq!(older.state, State::Missing);
    }

    #[test]
    fn a_library_that_is_not_there_is_an_error_and_no_panic() {
        for library in LIBRARIES {
            let finding = super::library(library);
            assert_eq!(
                library.is_present(),
                finding.state == State::Good || !finding.found.starts_with("no lib")
            );
        }
        if !Library::Driver.is_present() {
            let error = Device::open(0).unwrap_err().to_string();
            assert!(
                error.starts_with("libcuda.so.1 is not on this machine: install"),
                "{error}"
            );
        }
        if !Library::Compiler.is_present() {
            assert!(Compiler::find().is_err());
        }
    }
}
