//! What serde says of a wrong text, whatever the format, as a problem and a remedy.

use plimsoll_core::did_you_mean;

/// The problem, and the remedy where serde's words hold one.
pub(super) fn explain(message: &str) -> (String, Option<String>) {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let Some((key, known)) = quoted.split_first() else {
        return (message.to_owned(), None);
    };
    let meant = || {
        did_you_mean(key, known.iter().copied())
            .unwrap_or_else(|| format!("known here: {}", known.join(", ")))
    };
    if message.starts_with("unknown field") {
        // The list of all known keys is in the remedy, where it helps.
        (format!("unknown key `{key}`"), Some(meant()))
    } else if message.starts_with("unknown variant") {
        (message.to_owned(), Some(meant()))
    } else if message.starts_with("missing field") {
        (message.to_owned(), Some(format!("add `{key}`")))
    } else {
        (message.to_owned(), None)
    }
}
