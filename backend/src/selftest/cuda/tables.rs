//! Small tables that other kernels read.

use crate::cuda::launches::{PAGES_MOST, PagesTable, put_pages, put_places};

use super::Wrong;
use super::bench::Bench;

fn same(case: &str, found: &[u32], expected: &[u32]) -> Result<(), Wrong> {
    if found == expected {
        return Ok(());
    }
    let what = format!("{found:?} was written, and should be {expected:?}");
    let case = case.to_owned();
    Err(Wrong::Bytes { case, what })
}

pub fn pages(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for count in [0, 1, 9, PAGES_MOST] {
        bench.next_case();
        let case = format!("{count} pages");
        let pages: Vec<(u64, usize)> = (0..count)
            .map(|page| (0x7000_0000_0100 * (page as u64 + 1), 10 * page + 3))
            .collect();
        let (addresses, ends) = (bench.output(PAGES_MOST * 8)?, bench.output(PAGES_MOST * 4)?);
        let table = PagesTable {
            pages: addresses.address,
            page_ends: ends.address,
        };
        bench.launch(&put_pages(&pages, table)?)?;
        let mut halves: Vec<u32> = pages
            .iter()
            .flat_map(|(address, _)| [*address as u32, (address >> 32) as u32])
            .collect();
        halves.resize(2 * PAGES_MOST, 0);
        same(&case, &bench.read_words(&case, addresses)?, &halves)?;
        let mut past: Vec<u32> = pages.iter().map(|(_, end)| *end as u32).collect();
        past.resize(PAGES_MOST, 0);
        same(&case, &bench.read_words(&case, ends)?, &past)?;
    }
    Ok(())
}

pub fn places(bench: &mut Bench<'_>) -> Result<(), Wrong> {
    for (padding, query_len, position) in [
        (vec![], 7, 0),
        (vec![0, 3, 6], 7, 0),
        (vec![5, 0, 2, 1], 1, 12),
        (vec![2; 300], 2, 1),
    ] {
        bench.next_case();
        let sequences = padding.len().max(2);
        let case = format!("{sequences} sequences of {query_len} from {position}");
        let firsts = match padding.is_empty() {
            true => 0,
            false => bench.words(&padding)?,
        };
        let places = bench.output(sequences * query_len * 4)?;
        let shape = [sequences, query_len, position];
        bench.launch(&put_places((firsts, places.address), shape))?;
        let expected: Vec<u32> = (0..sequences * query_len)
            .map(|i| {
                let first = padding.get(i / query_len).copied().unwrap_or(0);
                ((position + i % query_len) as u32).saturating_sub(first)
            })
            .collect();
        same(&case, &bench.read_words(&case, places)?, &expected)?;
    }
    Ok(())
}
