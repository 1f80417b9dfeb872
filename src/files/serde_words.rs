//! What serde says of a wrong text, whatever the format, as a problem and a remedy.

use plimsoll_core::did_you_mean;

/// The problem, and the remedy where serde's words hold one.
pub(super) fn explain(message: &str) -> (String, Option<String>) {
    if let Some(problem) = unexpected(message) {
        return (problem, None);
    }
    // Of an object, serde takes a list of all its values, too.
    if message.starts_with("invalid length") && message.contains("expected struct") {
        return ("is a list, and not an object".to_owned(), None);
    }
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
    } else if message.starts_with("duplicate field") {
        (
            format!("`{key}` is there twice"),
            Some("give it once".to_owned()),
        )
    } else {
        (message.to_owned(), None)
    }
}

/// "invalid type: string "x", expected u32" without the names that a program has for things.
fn unexpected(message: &str) -> Option<String> {
    let said = ["invalid type: ", "invalid value: "];
    let said = said.iter().find_map(|start| message.strip_prefix(start))?;
    // What was found may hold any words, what was expected holds no such ones.
    let (found, expected) = said.rsplit_once(", expected ")?;
    if let Some(problem) = too_large(found, expected) {
        return Some(problem);
    }
    Some(format!(
        "is {}, and not {}",
        found_words(found),
        expected_words(expected)
    ))
}

/// A whole number that is one of those expected, but larger than their type holds.
fn too_large(found: &str, expected: &str) -> Option<String> {
    let number = found.strip_prefix("integer ")?.replace('`', "");
    let most = most(expected)?;
    let larger = number.parse::<u128>().ok()? > most;
    larger.then(|| format!("is {number}, and at most {most} is allowed"))
}

/// The largest number of a type.
fn most(expected: &str) -> Option<u128> {
    let (bits, has_sign) = match expected.split_at_checked(1)? {
        ("u", bits) => (bits, false),
        ("i", bits) => (bits, true),
        _ => return None,
    };
    let bits: u32 = match bits {
        "size" => usize::BITS,
        bits => bits.parse().ok()?,
    };
    (u8::BITS..=u64::BITS)
        .contains(&bits)
        .then(|| (1 << (bits - u32::from(has_sign))) - 1)
}

fn found_words(found: &str) -> String {
    let value = |kind: &str| found.strip_prefix(kind).map(|value| value.replace('`', ""));
    let numbers = ["integer ", "floating point ", "boolean "];
    if let Some(value) = numbers.iter().find_map(|kind| value(kind)) {
        return value;
    }
    match found {
        "map" => "an object".to_owned(),
        "sequence" => "a list".to_owned(),
        "unit value" => "null".to_owned(),
        _ => found.replacen("string ", "the text ", 1),
    }
}

fn expected_words(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number that is not negative",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a string" | "string" => "a text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "variant identifier" | "string or map" => "a name",
        _ if expected.starts_with("struct ") => "an object with keys",
        _ if expected == "a map" => "an object with keys",
        _ => expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_plain_names() {
        for (message, plain) in [
            (
                "invalid type: string \"x, expected y\", expected u32",
                "is the text \"x, expected y\", and not a whole number that is not negative",
            ),
            (
                "invalid value: integer `-4`, expected u32",
                "is -4, and not a whole number that is not negative",
            ),
            (
                "invalid value: integer `5000000000`, expected u32",
                "is 5000000000, and at most 4294967295 is allowed",
            ),
            (
                "invalid value: integer `300`, expected i8",
                "is 300, and at most 127 is allowed",
            ),
            (
                "invalid value: integer `9300000000000000000`, expected i64",
                "is 9300000000000000000, and at most 9223372036854775807 is allowed",
            ),
            (
                "invalid type: sequence, expected struct Policy",
                "is a list, and not an object with keys",
            ),
            (
                "invalid type: null, expected f64",
                "is null, and not a number",
            ),
        ] {
            assert_eq!(explain(message), (plain.to_owned(), None));
        }
    }
}
