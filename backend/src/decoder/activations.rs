//! What a stage works on: some tokens' activations as f32, in memory that is used again.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// Buffers that a thread keeps.
const KEPT_MOST: usize = 8;

thread_local! {
    static FREE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Activations of some tokens. A layer needs a dozen such buffers, of up to some megabytes: to have them from the system each
/// time, and zeroed, takes a tenth of a prompt's time.
#[derive(Debug)]
pub(crate) struct Activations(Vec<f32>);

impl Activations {
    /// Of no tokens.
    pub const fn none() -> Activations {
        Activations(Vec::new())
    }

    /// So many elements, whatever was there before: who asks for them writes them all.
    pub fn of(elements: usize) -> Activations {
        let mut buffer = FREE.with_borrow_mut(|free| {
            let fits = (0..free.len()).filter(|at| free[*at].capacity() >= elements);
            let tightest = fits.min_by_key(|at| free[*at].capacity());
            tightest.map(|at| free.swap_remove(at)).unwrap_or_default()
        });
        buffer.resize(elements, 0.0);
        // Nobody is to count on anything.
        if cfg!(debug_assertions) {
            buffer.fill(f32::NAN);
        }
        Activations(buffer)
    }

    /// A copy.
    pub fn copied(from: &[f32]) -> Activations {
        let mut all = Activations::of(from.len());
        all.copy_from_slice(from);
        all
    }
}

impl From<Vec<f32>> for Activations {
    fn from(elements: Vec<f32>) -> Activations {
        Activations(elements)
    }
}

impl Drop for Activations {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.0);
        // A thread that ends has let go of its buffers.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < KEPT_MOST && buffer.capacity() > 0 {
                free.push(buffer);
            }
        });
    }
}

impl Deref for Activations {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0
    }
}

impl DerefMut for Activations {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }
}
