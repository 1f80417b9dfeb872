//! How fast a GPU's links happen to copy: copies of reference, from and to page-locked memory and pageable one.

use std::sync::Arc;
use std::time::Instant;

use plimsoll_core::hardware::LinkSlowness;

use crate::cpu::CpuError;
use crate::cuda::executor::{Taken, timed, with_stream};
use crate::cuda::{Card, CopyRows, CudaError};
use crate::tiers::Region;

use super::moves::REGION;

/// Bytes of a copy, and the reference work's.
const COPY: usize = 16 << 20;

/// How long copies of a kind go on at least, at a moment. All that time counts: what holds some of them up holds up some of a run's.
const SECONDS_MIN: f64 = 0.06;

/// Seconds of copies of reference, in one direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkTimes {
    /// From or to page-locked memory.
    pub page_locked: f64,
    /// From or to pageable memory.
    pub pageable: f64,
}

impl LinkTimes {
    /// How much longer than others.
    pub(super) fn relative_to(&self, base: &LinkTimes) -> LinkSlowness {
        LinkSlowness {
            page_locked: self.page_locked / base.page_locked,
            pageable: self.pageable / base.pageable,
        }
    }

    /// Number by number.
    pub(super) fn by(of: impl Fn(fn(&LinkTimes) -> f64) -> f64) -> LinkTimes {
        LinkTimes {
            page_locked: of(|times| times.page_locked),
            pageable: of(|times| times.pageable),
        }
    }
}

/// To the GPU and from it.
pub type BothWays = [LinkTimes; 2];

/// A GPU, and the host's memory that is copied from and to. A probe's own copies go over as much.
#[derive(Debug)]
pub(super) struct LinkMeter {
    card: Arc<dyn Card>,
    page_locked: Region,
    pageable: Region,
}

impl LinkMeter {
    /// Takes the host's memory.
    ///
    /// # Errors
    /// Where there is none.
    pub fn new(card: Arc<dyn Card>) -> Result<LinkMeter, CpuError> {
        let region = || {
            let mut region = Region::new("host", REGION)?;
            // Memory that was never written is all the same page.
            region.bytes_mut().fill(1);
            Ok::<_, CpuError>(region)
        };
        Ok(LinkMeter {
            card,
            page_locked: region()?,
            pageable: region()?,
        })
    }

    /// Seconds that the reference work takes now, each way, on a card that no executor has.
    ///
    /// # Errors
    /// What the device says.
    pub fn now(&mut self) -> Result<BothWays, CudaError> {
        let card = &*self.card;
        with_stream(card, || {
            card.lock_pages(self.page_locked.address(), REGION.0 as usize)?;
            let mut taken = Taken::new(card);
            let device = taken.room(REGION.0 as usize)?;
            let locked = self.page_locked.address();
            let pageable = self.pageable.address();
            let times = |ends: fn(u64, u64) -> (u64, u64)| -> Result<LinkTimes, CudaError> {
                Ok(LinkTimes {
                    page_locked: copied(card, ends(locked, device))?,
                    pageable: copied(card, ends(pageable, device))?,
                })
            };
            Ok([
                times(|host, device| (host, device))?,
                times(|host, device| (device, host))?,
            ])
        })
    }
}

/// Seconds of a copy, of many that follow each other through regions at these addresses, by the card's clock: how long the host takes
/// to notice that they have ended is another thing each time.
fn copied(card: &dyn Card, (from, to): (u64, u64)) -> Result<f64, CudaError> {
    let mut turn = || -> Result<(), CudaError> {
        (0..REGION.0)
            .step_by(COPY)
            .try_for_each(|at| card.copy(0, &CopyRows::of(to + at, from + at, COPY)))
    };
    timed(card, &mut turn)?;
    let (start, mut seconds, mut copies) = (Instant::now(), 0.0, 0);
    while start.elapsed().as_secs_f64() < SECONDS_MIN {
        seconds += timed(card, &mut turn)?;
        copies += REGION.0 as usize / COPY;
    }
    Ok(seconds / copies as f64)
}
