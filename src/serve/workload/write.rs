//! Traces of requests as files.

use std::fmt::Write as _;

use plimsoll_core::serve::Request;

/// A line a request, under a header that [`read_trace`](super::read_trace) knows.
pub fn trace_csv(requests: &[Request]) -> String {
    let mut text = "arrived_at,num_prefill_tokens,num_decode_tokens\n".to_owned();
    for request in requests {
        let (prompt, output) = (request.prompt_len, request.output_len);
        // A text in memory takes what is written.
        let _ = writeln!(text, "{:.6},{prompt},{output}", request.arrival.0);
    }
    text
}

/// A JSON object a line.
pub fn trace_jsonl(requests: &[Request]) -> String {
    let mut text = String::new();
    for request in requests {
        let (at, prompt, output) = (request.arrival.0, request.prompt_len, request.output_len);
        let _ = writeln!(
            text,
            r#"{{"timestamp": {at:.6}, "input_length": {prompt}, "output_length": {output}}}"#
        );
    }
    text
}
