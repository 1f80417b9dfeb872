//! Operands on a device, and results held against a reference.

use plimsoll_core::Dtype;

use super::Wrong;
use crate::cuda::{CudaError, KernelDevice, Launch};
use crate::selftest::reference::{Checks, Expected, decode, encode};

/// Bytes behind a result that nobody may write.
const GUARD: usize = 64;

/// Memory that a kernel writes.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// Where.
    pub address: u64,
    bytes: usize,
}

/// A device under test.
pub struct Bench<'a> {
    /// Where kernels run.
    pub device: &'a mut dyn KernelDevice,
    /// What came of it so far.
    pub checks: Checks,
}

impl<'a> Bench<'a> {
    pub fn new(device: &'a mut dyn KernelDevice) -> Bench<'a> {
        Bench {
            device,
            checks: Checks::new(),
        }
    }

    /// The next operands: all memory is free again.
    pub fn next_case(&mut self) {
        self.checks.cases += 1;
        self.device.clear();
    }

    /// The next of a fixed sequence of integers.
    pub fn integer(&mut self, below: usize) -> usize {
        self.checks.integer(below)
    }

    /// Numbers between -size and size.
    pub fn numbers(&mut self, count: usize, size: f32) -> Vec<f32> {
        self.checks.numbers(count, size)
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<u64, CudaError> {
        let address = self.device.take(bytes.len().max(1))?;
        self.device.write(address, bytes)?;
        Ok(address)
    }

    /// Random numbers on the device, and as they are stored.
    pub fn operand(
        &mut self,
        dtype: Dtype,
        count: usize,
        size: f32,
    ) -> Result<(u64, Vec<f64>), CudaError> {
        let numbers = self.numbers(count, size);
        self.stored(dtype, &numbers)
    }

    /// Numbers on the device, and as they are stored.
    pub fn stored(&mut self, dtype: Dtype, numbers: &[f32]) -> Result<(u64, Vec<f64>), CudaError> {
        let bytes = encode(dtype, numbers);
        let address = self.bytes(&bytes)?;
        Ok((address, decode(dtype, &bytes)))
    }

    /// Unsigned integers on the device.
    pub fn words(&mut self, words: &[u32]) -> Result<u64, CudaError> {
        self.bytes(bytemuck::cast_slice(words))
    }

    /// Addresses on the device.
    pub fn addresses(&mut self, addresses: &[u64]) -> Result<u64, CudaError> {
        self.bytes(bytemuck::cast_slice(addresses))
    }

    /// Bytes on the device.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<u64, CudaError> {
        self.bytes(bytes)
    }

    /// Room for a result.
    pub fn output(&mut self, bytes: usize) -> Result<Output, CudaError> {
        let address = self.device.take(bytes + GUARD)?;
        Ok(Output { address, bytes })
    }

    /// Room for a result of numbers.
    pub fn numbers_out(&mut self, dtype: Dtype, count: usize) -> Result<Output, CudaError> {
        self.output(count * dtype.size_bytes() as usize)
    }

    /// Runs a kernel.
    pub fn launch(&mut self, launch: &Launch) -> Result<(), CudaError> {
        self.device.launch(launch)
    }

    /// What was written.
    pub fn read(&mut self, case: &str, output: Output) -> Result<Vec<u8>, Wrong> {
        let mut bytes = vec![0; output.bytes + GUARD];
        self.device.read(output.address, &mut bytes)?;
        let behind = bytes.split_off(output.bytes);
        match behind.iter().position(|byte| *byte != 0xff) {
            None => Ok(bytes),
            Some(at) => Err(Wrong::Bytes {
                case: case.to_owned(),
                what: format!("byte {at} behind the result was written"),
            }),
        }
    }

    /// Unsigned integers that were written.
    pub fn read_words(&mut self, case: &str, output: Output) -> Result<Vec<u32>, Wrong> {
        let bytes = self.read(case, output)?;
        let words = bytes.as_chunks::<4>().0.iter();
        Ok(words.map(|word| u32::from_ne_bytes(*word)).collect())
    }

    /// Holds a result against the reference.
    pub fn check(
        &mut self,
        case: &str,
        (dtype, output): (Dtype, Output),
        expected: &[Expected],
    ) -> Result<(), Wrong> {
        let bytes = self.read(case, output)?;
        let found = decode(dtype, &bytes);
        self.checks.near(case, dtype, &found, expected)
    }
}
