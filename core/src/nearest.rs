//! What a wrong name was probably meant to be.

/// Of the longer of two names, the share of letters that must be right.
const LIKENESS_MIN: f64 = 0.5;

/// Letters that may be wrong at most: of long names, half of them would be another word.
const WRONG_MAX: usize = 5;

/// The question "did you mean ...?" about the candidate most like `name`, if any is close. Most like it is what goes on behind it with
/// a dash and few letters.
pub fn did_you_mean<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    candidates
        .into_iter()
        .map(|candidate| {
            let more = candidate.strip_prefix(name);
            let likeness = match more.is_some_and(|more| more.starts_with('-')) {
                true => 1.0,
                false => strsim::normalized_damerau_levenshtein(name, candidate),
            };
            (likeness, candidate)
        })
        .filter(|(likeness, candidate)| {
            *likeness >= LIKENESS_MIN && strsim::damerau_levenshtein(name, candidate) <= WRONG_MAX
        })
        .reduce(|best, it| if it.0 > best.0 { it } else { best })
        .map(|(_, candidate)| format!("did you mean `{candidate}`?"))
}

/// Whether a name is another but for two letters at most: where names of the reader's own may stand
/// beside ours, only this is a slip.
pub fn is_slip_of(name: &str, candidate: &str) -> bool {
    name.len() > 5 && strsim::damerau_levenshtein(name, candidate) <= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_close_is_suggested() {
        let meant = |name| did_you_mean(name, ["t4", "a100-80", "llama-7b"]);
        assert_eq!(meant("t5").as_deref(), Some("did you mean `t4`?"));
        assert_eq!(meant("llama").as_deref(), Some("did you mean `llama-7b`?"));
        assert_eq!(meant("a100").as_deref(), Some("did you mean `a100-80`?"));
        let gpus = did_you_mean("a100", ["h100", "a100-80"]);
        assert_eq!(gpus.as_deref(), Some("did you mean `a100-80`?"));
        assert_eq!(meant("h200"), None);
        assert_eq!(meant(""), None);
        assert_eq!(did_you_mean("max_tokens", ["prompt_token_ids"]), None);
    }
}
