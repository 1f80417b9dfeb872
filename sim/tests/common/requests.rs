//! Requests that tests serve.

use plimsoll_core::serve::Request;
use plimsoll_core::units::Seconds;

/// Of these prompts and answers, `gap` seconds apart.
pub fn requests(lengths: &[(u32, u32)], gap: f64) -> Vec<Request> {
    let each = lengths.iter().enumerate();
    each.map(|(index, (prompt_len, output_len))| Request {
        arrival: Seconds(index as f64 * gap),
        prompt_len: *prompt_len,
        output_len: *output_len,
    })
    .collect()
}
