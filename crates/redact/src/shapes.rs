//! Detection of secrets without a name: known token shapes, and strings that look random.
//!
//! Randomness is judged without logarithms, so that the result is the same on every platform: by the length, by the
//! number of different characters, and by the number of changes between upper case, lower case and digits. One change
//! per camel-case word is expected and does not count twice. The thresholds:
//!
//! | kinds of characters | length | changes per 100 characters | different ones |
//! | --- | --- | --- | --- |
//! | upper, lower and digits | 24 and more | 22 | 10 |
//! | letters of one case and digits | 32 and more without `-`, `_`, `+`, `/` between | 15 | 10 |
//! | upper and lower | 32 and more without `-`, `_`, `+`, `/` between | 40 | 10 |
//! | hexadecimal | 32 and more | | 6 |
//!
//! Of random text with enough length, one in seventy escapes at 24 characters of base62, one in three hundred at 32,
//! one in a thousand at 40. Words in camel case, paths, model names and base64 of a short text are kept. So are values
//! that are known to be random and public: UUIDs, ULIDs (also after a short prefix), trace parents, the ids that model
//! vendors give to calls and messages, subresource digests (`sha512-…`), and hexadecimal after a word such as `commit`
//! or `sha256`. The twelve digits of Steadfast's fingerprints are far below every threshold.

/// Returns the end of the token of a known shape at the beginning of `text`, if there is one.
pub(super) fn known_shape(text: &[u8]) -> Option<usize> {
    let first = text.first()?;
    if text.starts_with(b"eyJ") {
        return jwt(text);
    }
    if first.is_ascii_digit() {
        return telegram(text);
    }
    SHAPES.iter().filter(|(prefix, ..)| prefix.as_bytes().first() == Some(first)).find_map(
        |(prefix, tail, least)| {
            let rest = text.strip_prefix(prefix.as_bytes())?;
            (rest.iter().take(*least).take_while(|byte| tail.has(**byte)).count() == *least)
                .then(|| prefix.len() + rest.iter().take_while(|byte| tail.has(**byte)).count())
        },
    )
}

/// Returns the end of the payment card number at the beginning of `text`, if there is one: 13 to 19 digits with a valid
/// check digit (Luhn) and a prefix of card numbers, in one piece or in groups separated by one blank or one dash. Times
/// in milliseconds begin with a 1, and are not card numbers.
pub(super) fn card_number(text: &[u8]) -> Option<usize> {
    let (mut digits, mut count, mut at) = ([0_u8; MAX_CARD], 0, 0);
    let (mut separator, mut end) = (None, None);
    loop {
        let before = count;
        while let Some(digit @ b'0'..=b'9') = text.get(at) {
            let Some(place) = digits.get_mut(count) else { return end };
            (*place, count, at) = (digit - b'0', count + 1, at + 1);
        }
        let (group, rest) = (count - before, text.get(at..).unwrap_or_default());
        if before > 0 && group < MIN_CARD_GROUP {
            return end;
        }
        let continues = match rest {
            [b'.', fraction @ ..] => is_fraction(fraction),
            [next, ..] => next.is_ascii_alphanumeric() || *next == b'_',
            [] => false,
        };
        if !continues && is_card(digits.get(..count).unwrap_or_default()) {
            end = Some(at);
        }
        match rest {
            [by @ (b' ' | b'-'), b'0'..=b'9', ..]
                if separator.is_none_or(|other| other == by) && (before > 0 || group == CARD_GROUP) =>
            {
                (separator, at) = (Some(by), at + 1);
            }
            _ => return end,
        }
    }
}

/// Returns true if a text begins with digits that belong to nothing else: no part of them is ever masked.
fn is_fraction(text: &[u8]) -> bool {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let next = text.get(digits).copied().unwrap_or(b' ');
    digits > 0 && !next.is_ascii_alphanumeric() && !matches!(next, b'_' | b'-' | b'+' | b'/' | b':')
}

fn is_card(digits: &[u8]) -> bool {
    let begins = match digits {
        [3..=6, ..] => true,
        [2, 2..=7, ..] => digits.len() == 16,
        _ => false,
    };
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(place, digit)| match (place % 2, u32::from(*digit)) {
            (0, digit) => digit,
            (_, digit @ 5..) => digit * 2 - 9,
            (_, digit) => digit * 2,
        })
        .sum();
    begins && digits.len() >= MIN_CARD && sum.is_multiple_of(10)
}

/// Returns true if a string of letters, digits and `-_+/` looks random and is none of the known public ones.
/// `public_hex` returns true if a name before it makes hexadecimal harmless. It is called only if that matters.
pub(super) fn looks_random(piece: &str, public_hex: impl FnOnce() -> bool) -> bool {
    if piece.len() < MIN_MIXED || is_public(piece) {
        return false;
    }
    if let Some(random) = is_random_hex(piece) {
        return random && !public_hex();
    }
    let mut whole = CharTally::default();
    for segment in piece.split('/') {
        if !is_public(segment) && is_random_hex(segment).is_none() {
            whole.add(segment);
        }
    }
    if whole.has_all_kinds() && whole.looks_random(MIN_MIXED, 22) {
        return true;
    }
    piece.split(['-', '_', '+', '/']).any(|run| {
        let mut tally = CharTally::default();
        tally.add(run);
        let changes = if tally.digits == 0 { 40 } else { 15 };
        tally.kinds() >= 2 && tally.looks_random(MIN_PLAIN, changes)
    })
}

/// Returns true for a digest as package managers write it: `sha512-` and base64. It is public.
pub(super) fn is_integrity(piece: &str) -> bool {
    piece.len() <= 100
        && ["sha1-", "sha256-", "sha384-", "sha512-"].iter().any(|prefix| piece.starts_with(prefix))
}

/// Matches header, payload and signature of a JSON web token. The signature may be missing, and encryption adds parts.
fn jwt(text: &[u8]) -> Option<usize> {
    let word = |from: usize, most: usize| {
        let rest = text.get(from..).unwrap_or_default();
        rest.iter().take(most).take_while(|byte| TokenTail::Word.has(**byte)).count()
    };
    let header = word(0, MAX_JWT_HEADER);
    if header < 10 || text.get(header) != Some(&b'.') || word(header + 1, 4) < 4 {
        return None;
    }
    let payload = word(header + 1, usize::MAX);
    let mut end = header + 1 + payload;
    for _ in 0..3 {
        if text.get(end) == Some(&b'.') {
            end += 1 + word(end + 1, usize::MAX);
        }
    }
    Some(end)
}

/// Matches a bot's number, a colon, and at least 35 characters.
fn telegram(text: &[u8]) -> Option<usize> {
    let digits = text.iter().take(13).take_while(|byte| byte.is_ascii_digit()).count();
    let rest = text.get(digits..)?.strip_prefix(b":")?;
    let tail = rest.iter().take_while(|byte| TokenTail::Word.has(**byte)).count();
    ((8..=12).contains(&digits) && tail >= 35).then_some(digits + 1 + tail)
}

fn is_public(piece: &str) -> bool {
    is_grouped_hex(piece, &[8, 4, 4, 4, 12])
        || is_grouped_hex(piece, &[2, 32, 16, 2])
        || is_prefixed_ulid(piece)
        || (piece.len() <= MAX_PUBLIC_ID && PUBLIC_PREFIXES.iter().any(|prefix| piece.starts_with(prefix)))
}

fn is_grouped_hex(piece: &str, groups: &[usize]) -> bool {
    let mut parts = piece.split('-');
    groups.iter().all(|length| {
        parts
            .next()
            .is_some_and(|part| part.len() == *length && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
    }) && parts.next().is_none()
}

fn is_prefixed_ulid(piece: &str) -> bool {
    let Some((prefix, ulid)) = piece.rsplit_once(['_', '-']) else {
        return false;
    };
    prefix.len() <= 12
        && prefix.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte == b'-')
        && ulid.len() == 26
        && ulid.starts_with(|first: char| ('0'..='7').contains(&first))
        && ulid.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
}

/// Returns true if hexadecimal looks random, and `None` if it is not hexadecimal. A plain number is not.
fn is_random_hex(piece: &str) -> Option<bool> {
    let digits = piece.bytes().filter(u8::is_ascii_digit).count();
    let one_case = piece.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        || piece.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F'));
    (one_case && digits < piece.len()).then(|| {
        let mut tally = CharTally::default();
        tally.add(piece);
        piece.len() >= MIN_PLAIN && tally.digits > 0 && tally.different() >= 6
    })
}

/// The characters of a string, counted by kind.
#[derive(Default)]
struct CharTally {
    length: usize,
    upper: usize,
    lower: usize,
    digits: usize,
    changes: usize,
    /// One bit for each ASCII character found.
    characters: u128,
}

impl CharTally {
    fn add(&mut self, segment: &str) {
        let (mut before, mut earlier) = (CharKind::Other, CharKind::Other);
        for byte in segment.bytes() {
            let kind = CharKind::of(byte);
            match kind {
                CharKind::Upper => self.upper += 1,
                CharKind::Lower => self.lower += 1,
                CharKind::Digit => self.digits += 1,
                CharKind::Other => {}
            }
            // The capital at the start of a word belongs to the word.
            let word_begins =
                before == CharKind::Upper && kind == CharKind::Lower && earlier != CharKind::Upper;
            let change =
                kind != before && kind != CharKind::Other && before != CharKind::Other && !word_begins;
            self.changes += usize::from(change);
            self.length += 1;
            self.characters |= 1_u128 << (byte & 0x7f);
            (earlier, before) = (before, kind);
        }
    }

    fn looks_random(&self, least: usize, changes_percent: usize) -> bool {
        self.length >= least && self.changes * 100 >= self.length * changes_percent && self.different() >= 10
    }

    const fn different(&self) -> u32 {
        self.characters.count_ones()
    }

    fn kinds(&self) -> usize {
        usize::from(self.upper > 0) + usize::from(self.lower > 0) + usize::from(self.digits > 0)
    }

    fn has_all_kinds(&self) -> bool {
        self.kinds() == 3
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CharKind {
    Upper,
    Lower,
    Digit,
    Other,
}

impl CharKind {
    const fn of(byte: u8) -> Self {
        match byte {
            b'A'..=b'Z' => Self::Upper,
            b'a'..=b'z' => Self::Lower,
            b'0'..=b'9' => Self::Digit,
            _ => Self::Other,
        }
    }
}

/// The characters that may follow the prefix of a token.
#[derive(Clone, Copy)]
enum TokenTail {
    /// Letters, digits, `_` and `-`.
    Word,
    /// Letters, digits, `_`, `-` and `.`.
    Dotted,
    /// Letters, digits, `_`, `-` and `/`.
    Path,
    /// Upper case letters and digits.
    Capitals,
    /// Hexadecimal digits.
    Hex,
}

impl TokenTail {
    const fn has(self, byte: u8) -> bool {
        let word = byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        match self {
            Self::Word => word,
            Self::Dotted => word || byte == b'.',
            Self::Path => word || matches!(byte, b'.' | b'/'),
            Self::Capitals => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
            Self::Hex => byte.is_ascii_hexdigit(),
        }
    }
}

/// The minimum number of digits of a payment card number.
const MIN_CARD: usize = 13;
const MAX_CARD: usize = 19;
/// The number of digits in the first group of a card number, and the minimum in each other group.
const CARD_GROUP: usize = 4;
const MIN_CARD_GROUP: usize = 2;
/// The minimum length of a random mix of upper case, lower case and digits.
const MIN_MIXED: usize = 24;
/// The minimum length of any other random string.
const MIN_PLAIN: usize = 32;
/// The maximum length of public ids.
const MAX_PUBLIC_ID: usize = 80;
/// The maximum length of the header of a JSON web token. A longer one looks random anyway.
const MAX_JWT_HEADER: usize = 1024;

/// The prefixes of public ids.
const PUBLIC_PREFIXES: &[&str] = &[
    "toolu_",
    "srvtoolu_",
    "call_",
    "fc_",
    "msg_",
    "req_",
    "resp_",
    "run_",
    "rs_",
    "chatcmpl-",
    "cmpl-",
    "thread_",
    "item_",
    "evt_",
];

/// Prefix, following characters, and their minimum number.
const SHAPES: &[(&str, TokenTail, usize)] = &[
    // Model vendors.
    ("sk-", TokenTail::Word, 16),
    ("gsk_", TokenTail::Word, 20),
    ("xai-", TokenTail::Word, 20),
    ("pplx-", TokenTail::Word, 20),
    ("nvapi-", TokenTail::Word, 20),
    ("hf_", TokenTail::Word, 20),
    ("r8_", TokenTail::Word, 20),
    ("tvly-", TokenTail::Word, 16),
    ("fw_", TokenTail::Word, 20),
    // Code hosts and package registries.
    ("ghp_", TokenTail::Word, 16),
    ("gho_", TokenTail::Word, 16),
    ("ghu_", TokenTail::Word, 16),
    ("ghs_", TokenTail::Word, 16),
    ("ghr_", TokenTail::Word, 16),
    ("github_pat_", TokenTail::Word, 16),
    ("glpat-", TokenTail::Dotted, 16),
    ("gldt-", TokenTail::Word, 16),
    ("glrt-", TokenTail::Word, 16),
    ("glptt-", TokenTail::Word, 16),
    ("ATBB", TokenTail::Word, 24),
    ("ATATT", TokenTail::Word, 24),
    ("npm_", TokenTail::Word, 20),
    ("pypi-", TokenTail::Word, 16),
    ("rubygems_", TokenTail::Word, 20),
    ("cio", TokenTail::Word, 32),
    ("dckr_pat_", TokenTail::Word, 16),
    // Clouds.
    ("AKIA", TokenTail::Capitals, 16),
    ("ASIA", TokenTail::Capitals, 16),
    ("ABIA", TokenTail::Capitals, 16),
    ("ACCA", TokenTail::Capitals, 16),
    ("LTAI", TokenTail::Word, 16),
    ("AIza", TokenTail::Word, 30),
    ("ya29.", TokenTail::Dotted, 16),
    ("GOCSPX-", TokenTail::Word, 16),
    ("dop_v1_", TokenTail::Word, 20),
    ("doo_v1_", TokenTail::Word, 20),
    ("dor_v1_", TokenTail::Word, 20),
    ("dapi", TokenTail::Hex, 32),
    ("hvs.", TokenTail::Word, 16),
    ("hvb.", TokenTail::Word, 16),
    ("hvr.", TokenTail::Word, 16),
    ("AGE-SECRET-KEY-", TokenTail::Word, 16),
    // Messaging.
    ("xoxa-", TokenTail::Word, 10),
    ("xoxb-", TokenTail::Word, 10),
    ("xoxp-", TokenTail::Word, 10),
    ("xoxr-", TokenTail::Word, 10),
    ("xoxs-", TokenTail::Word, 10),
    ("xoxc-", TokenTail::Word, 10),
    ("xoxd-", TokenTail::Word, 10),
    ("xoxe-", TokenTail::Word, 10),
    ("xoxe.", TokenTail::Dotted, 10),
    ("xapp-", TokenTail::Word, 10),
    ("hooks.slack.com/services/", TokenTail::Path, 8),
    ("hooks.slack.com/workflows/", TokenTail::Path, 8),
    ("discord.com/api/webhooks/", TokenTail::Path, 8),
    ("discordapp.com/api/webhooks/", TokenTail::Path, 8),
    ("SG.", TokenTail::Dotted, 30),
    ("key-", TokenTail::Hex, 32),
    // Payment and commerce.
    ("sk_live_", TokenTail::Word, 10),
    ("sk_test_", TokenTail::Word, 10),
    ("rk_live_", TokenTail::Word, 10),
    ("rk_test_", TokenTail::Word, 10),
    ("whsec_", TokenTail::Word, 16),
    ("sq0atp-", TokenTail::Word, 16),
    ("sq0csp-", TokenTail::Word, 16),
    ("shpat_", TokenTail::Word, 16),
    ("shpca_", TokenTail::Word, 16),
    ("shppa_", TokenTail::Word, 16),
    ("shpss_", TokenTail::Word, 16),
    // Other services.
    ("SK", TokenTail::Hex, 32),
    ("lin_api_", TokenTail::Word, 16),
    ("ntn_", TokenTail::Word, 20),
    ("figd_", TokenTail::Word, 16),
    ("PMAK-", TokenTail::Word, 20),
    ("sntrys_", TokenTail::Word, 20),
    ("glc_", TokenTail::Word, 20),
    ("glsa_", TokenTail::Word, 20),
    ("dt0c01.", TokenTail::Dotted, 20),
    ("NRAK-", TokenTail::Word, 16),
    ("sbp_", TokenTail::Word, 20),
    ("pscale_tkn_", TokenTail::Word, 16),
    ("tfp_", TokenTail::Word, 20),
    ("EAAA", TokenTail::Word, 40),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_strings_are_distinguished_from_words_paths_and_public_ids() {
        for random in [
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "q9Zt3LmX7vB2cN8kR5wY1pHd",
            "k3j9x0q2m7v5b8n1c4z6l0p3o5i7u9y2",
            "d41d8cd98f00b204e9800998ecf8427e",
            "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "QmFzZTY0IGVuY29kZWQgc2VjcmV0IHZhbHVlIDEyMzQ1",
            "xKdPqWmZrTvYbNcLsHgJfQaEoUiDkMwX",
        ] {
            assert!(looks_random(random, || false), "{random}");
        }
        for plain in [
            "",
            "ba7816bf8f01",
            "123e4567-e89b-12d3-a456-426614174000",
            "123E4567-E89B-12D3-A456-426614174000",
            "01HQ3K5J8ZV7T9XW2M4N6P8R0S",
            "req_01HQ3K5J8ZV7T9XW2M4N6P8R0S",
            "toolu_01A09q90qw90lq917835lq9K2m",
            "call_9pw2Yk3vQbT5sH7dX1mZ4nL8",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "AbstractSingletonProxyFactoryBean2",
            "/home/User1/Projects/MyApp2/src/Main",
            "payments-api-deployment-7d9f8c6b5d-x2k9p",
            "claude-3-5-sonnet-20241022",
            "accounts/fireworks/models/llama-v3p1-405b-instruct",
            "SGVsbG8gd29ybGQ",
            "ERR_SSL_VERSION_OR_CIPHER_MISMATCH",
            "123456789012345678901234567890123456",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "internationalizationandlocalization",
        ] {
            assert!(!looks_random(plain, || false), "{plain}");
        }
        assert!(!looks_random("d41d8cd98f00b204e9800998ecf8427e", || true));
    }

    #[test]
    fn card_numbers_are_detected_by_check_digit_and_prefix() {
        for card in [
            "4111111111111111",
            "4111 1111 1111 1111",
            "4111-1111-1111-1111",
            "4222222222222",
            "5555555555554444",
            "2223003122003222",
            "378282246310005",
            "3782 822463 10005",
            "30569309025904",
            "6011 1111 1111 1117",
            "3530111333300000",
            "6200000000000000000",
        ] {
            for after in ["", ".", ". Then", ",4", " 2026", " EUR", ")", "-x", "\n4", ".0a", ".1:x"] {
                let end = card_number(format!("{card}{after}").as_bytes());
                assert_eq!(end, Some(card.len()), "{card}{after}");
            }
        }
        for other in [
            "4111111111111112",
            "4111 1111-1111 1111",
            "4111  1111 1111 1111",
            "41111111111111110000",
            "41111111111111a1",
            "4111111111111111a",
            "4111111111111111_1",
            "4111111111111111.5",
            "4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1",
            "1763498308123",
            "0000000000000000",
            "411111111116",
            "2026-11-18 20:38:28",
        ] {
            assert_eq!(card_number(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn every_known_shape_is_found_and_its_prefix_alone_is_not() {
        for (prefix, tail, least) in SHAPES {
            let body: String = "AB12CD34EF56".chars().cycle().take(*least).collect();
            let token = format!("{prefix}{body}");
            assert_eq!(known_shape(token.as_bytes()), Some(token.len()), "{token}");
            assert_eq!(known_shape(format!("{token}!").as_bytes()), Some(token.len()), "{token}");
            let short = format!("{prefix}{}", body.get(1..).unwrap());
            assert!(known_shape(short.as_bytes()).is_none_or(|end| end < least + prefix.len()), "{short}");
            assert!(tail.has(b'A') && !tail.has(b' '));
        }
        assert_eq!(known_shape(b"123456789:AAFabcdefghijklmnopqrstuvwxyz012345"), Some(45));
    }
}
