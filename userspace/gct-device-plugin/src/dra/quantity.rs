// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads Kubernetes' quantities, such as `20Gi`. An API server may write another form than it got.

/// Suffixes and their factors.
const SUFFIXES: [(&str, u64); 10] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
];

/// Parses a quantity that is a whole number. Returns `None` for any other.
pub fn parse(text: &str) -> Option<u64> {
    let with_suffix = SUFFIXES
        .iter()
        .find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)));
    let (digits, factor) = with_suffix.unwrap_or((text, 1));
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = is_number.then(|| digits.parse().ok())??;
    number.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_read_in_every_form() {
        for (text, number) in [
            ("0", 0),
            ("66", 66),
            ("20Gi", 20 << 30),
            ("21474836480", 20 << 30),
            ("5k", 5_000),
            ("16Ki", 16_384),
        ] {
            assert_eq!(parse(text), Some(number), "{text}");
        }
        for text in [
            "",
            "Gi",
            "1.5Gi",
            "-1",
            "+1",
            "1e3",
            "500m",
            "1 Gi",
            "99999999Pi",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
