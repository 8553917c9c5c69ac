//! Secret names: names of fields and parameters that have a secret value.
//!
//! A name is split into words at everything except letters and digits, and where the case changes. Case does not
//! matter. So `apiKey`, `API-KEY` and `x_api_key` are the same, while `tokenizer`, `author` and `max_tokens` contain no
//! secret word. A last word *about* a secret (`token_count`, `password_policy`, `secretName`) makes the name harmless.
//! Its value is still scanned like any other text.

use std::sync::LazyLock;

/// Returns true if a field of this name holds a secret.
pub fn is_secret_name(name: &str) -> bool {
    let words = words(name);
    let (Some(last), count) = (words.last(), words.len()) else {
        return false;
    };
    if pairs(&words).any(|pair| is_pair(&ALWAYS_PAIRS, pair)) {
        return true;
    }
    if is_one_of(&ABOUT_WORDS, last) {
        return false;
    }
    words.iter().any(|word| is_one_of(&SECRET_WORDS, word))
        || pairs(&words).any(|pair| is_pair(&SECRET_PAIRS, pair))
        || is_one_of(&FINAL_WORDS, last)
        || (count == 1 && is_one_of(&LONE_WORDS, last))
}

/// Returns true if a query parameter of this name holds a secret. URLs use short names that mean nothing elsewhere.
pub(super) fn is_secret_parameter(name: &str) -> bool {
    ends_in_secret_name(name) || words(name).last().is_some_and(|last| is_one_of(&PARAMETER_WORDS, last))
}

/// Returns true if a name or a path with dots names a secret by its last part. `db.password` does, while
/// `/etc/secrets/readme` and `token.txt` are files.
pub(super) fn ends_in_secret_name(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let mut parts = name.rsplit('.');
    let last = parts.next().unwrap_or_default();
    let qualified = parts.next().and_then(|before| name.get(name.len() - last.len() - 1 - before.len()..));
    is_secret_name(last)
        || (is_one_of(&["key", "keys", "value", "hash"], last) && qualified.is_some_and(is_secret_name))
}

/// Returns true if two adjacent words are the name of a secret: "API key".
pub(super) fn is_secret_phrase(first: &str, second: &str) -> bool {
    is_pair(&SECRET_PAIRS, (first, second))
}

/// Returns true if the value of such a field is a digest or an identifier: long, but not secret.
pub(super) fn is_digest_name(name: &str) -> bool {
    all_words(name).iter().any(|word| is_one_of(&DIGEST_WORDS, word))
}

/// Returns true for a header whose value is the rest of the line.
pub(super) fn is_header_name(name: &str) -> bool {
    words(name).last().is_some_and(|last| is_one_of(&["authorization", "cookie", "cookies"], last))
}

/// Returns true for the shell's name of the working folder, which only looks like a password.
pub(super) fn is_working_folder(name: &str) -> bool {
    is_one_of(&["pwd", "oldpwd"], name)
}

/// Returns true if a field of a Steadfast response holds a name that a caller chose, or a sentence with such a name.
pub(super) fn holds_a_chosen_name(field: &str) -> bool {
    is_one_of(&CHOSEN_NAMES, field)
}

/// Returns the words of a name, without those at its end that only describe the format of the value.
fn words(name: &str) -> Vec<&str> {
    let mut words = all_words(name);
    while words.len() > 1 && words.last().is_some_and(|last| is_one_of(&FORM_WORDS, last)) {
        words.pop();
    }
    words
}

/// Returns the final words of a name, without numbers.
fn all_words(name: &str) -> Vec<&str> {
    let mut start = name.len().saturating_sub(MAX_NAME_BYTES);
    while !name.is_char_boundary(start) {
        start += 1;
    }
    let name = name.get(start..).unwrap_or_default();
    let mut words = Vec::new();
    let mut begin = 0;
    let mut before = CharClass::Other;
    let mut bytes = name.bytes().enumerate().peekable();
    while let Some((at, byte)) = bytes.next() {
        let class = CharClass::of(byte);
        let next = bytes.peek().map_or(CharClass::Other, |(_, byte)| CharClass::of(*byte));
        let starts = match (before, class) {
            (CharClass::Upper, CharClass::Upper) => next == CharClass::Lower,
            (CharClass::Upper, CharClass::Lower) => false,
            (before, class) => before != class,
        };
        if starts {
            words.extend(name.get(begin..at));
            begin = at;
        }
        before = class;
    }
    words.extend(name.get(begin..));
    words.retain(|word| word.bytes().next().is_some_and(|byte| CharClass::of(byte).is_letter()));
    words
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CharClass {
    Upper,
    Lower,
    Digit,
    Other,
}

impl CharClass {
    fn of(byte: u8) -> Self {
        match byte {
            b'A'..=b'Z' => Self::Upper,
            b'0'..=b'9' => Self::Digit,
            // Letters of other scripts count as lower case.
            b'a'..=b'z' | 0x80.. => Self::Lower,
            _ => Self::Other,
        }
    }

    const fn is_letter(self) -> bool {
        matches!(self, Self::Upper | Self::Lower)
    }
}

fn pairs<'w>(words: &'w [&'w str]) -> impl Iterator<Item = (&'w str, &'w str)> {
    words.iter().copied().zip(words.iter().copied().skip(1))
}

fn is_one_of(list: &[&str], word: &str) -> bool {
    list.iter().any(|known| known.eq_ignore_ascii_case(word))
}

fn is_pair(list: &[&str], (first, second): (&str, &str)) -> bool {
    list.iter()
        .filter(|pair| pair.len() == first.len() + 1 + second.len())
        .filter_map(|pair| pair.split_once('_'))
        .any(|(a, b)| a.eq_ignore_ascii_case(first) && b.eq_ignore_ascii_case(second))
}

/// The maximum length of the part of a name that is examined, from its end.
const MAX_NAME_BYTES: usize = 128;

/// A list of words, written as one text for readability.
type WordList = LazyLock<Vec<&'static str>>;

fn list(words: &'static str) -> Vec<&'static str> {
    words.split(' ').collect()
}

/// The fields of Steadfast responses that hold names of tools, requests and sessions, or sentences about them.
static CHOSEN_NAMES: WordList = LazyLock::new(|| {
    list(
        "\
    breakers conversation correlationId key message model name namespace request requestId session sessionKey \
    sessions subject text tool toolCallId toolName toolNamespace tools todo turn turnId what",
    )
});

/// Words that are secret anywhere in the name.
static SECRET_WORDS: WordList = LazyLock::new(|| {
    list(
        "\
    accesskey accesstoken accountkey apikey apikeys apisecret apitoken authkey authorization authtoken \
    bearer bearertoken clientsecret cookie cookies credential credentials creds csrftoken cvc cvv \
    dbpassword idtoken jsessionid jwt passcode passphrase passwd password passwords pgpassword phpsessid \
    privatekey pwd refreshtoken secret secretkey secrets sessid sessionid sessiontoken ssn token \
    userpassword xsrftoken",
    )
});

/// Pairs that are secret if the words are adjacent.
static SECRET_PAIRS: WordList = LazyLock::new(|| {
    list(
        "\
    access_key access_keys access_tokens account_key api_key api_keys api_tokens auth_code auth_key \
    auth_tokens bot_tokens card_number credit_card encryption_key license_key master_key private_key \
    private_keys recovery_code recovery_codes refresh_tokens seed_phrase service_key \
    shared_key signing_key signing_keys ssh_key storage_key subscription_key webhook_url",
    )
});

/// Pairs that are secret although the last word would make another name harmless.
static ALWAYS_PAIRS: WordList = LazyLock::new(|| {
    list(
        "\
    secret_id card_number webhook_url secret_data",
    )
});

/// Words that are secret as the last word.
static FINAL_WORDS: WordList = LazyLock::new(|| {
    list(
        "\
    auth pass otp totp",
    )
});

/// Words that are secret as the whole name.
static LONE_WORDS: WordList = LazyLock::new(|| {
    list(
        "\
    pin",
    )
});

/// Words that are secret as the last word of a query parameter.
static PARAMETER_WORDS: WordList = LazyLock::new(|| {
    list(
        "\
    key sig signature sign code ticket assertion",
    )
});

/// Words about a secret, as the last word.
static ABOUT_WORDS: WordList = LazyLock::new(|| {
    list(
        "\
    age alg algorithm arn at audience balance budget cost count counts created days dir enabled endpoint \
    endpoints error errors exists expiration expired expires expiry expiring field fields file folder \
    format hint id in index invalid issuer kind len length lifetime limit limits manager max message \
    method min missing mode ms name names number offset path paths period policies policy position \
    prefix present price provider rate ratio ref refs required rotation rules scope scopes seconds size \
    source state status store timeout total ttl type types uri uris url urls usage used valid validity \
    version window",
    )
});

/// Words that only describe the format of the value. They are skipped at the end.
static FORM_WORDS: WordList = LazyLock::new(|| {
    list(
        "\
    base b default enc encrypted env hash hashed header hex json new old plain plaintext raw str string \
    text v value var",
    )
});

/// Names of long, random, and public values.
static DIGEST_WORDS: WordList = LazyLock::new(|| {
    list(
        "\
    checksum commit correlation crc digest etag fingerprint hash head integrity md merge object oid \
    parent request rev revision sha span trace traceid traceparent tree",
    )
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_names_are_known_in_every_spelling() {
        for name in [
            "token",
            "Token",
            "ACCESS_TOKEN",
            "accessToken",
            "access-token",
            "x-auth-token",
            "password",
            "db.password",
            "PGPASSWORD",
            "MYSQL_PWD",
            "passwd",
            "userPassword",
            "client_secret",
            "AWS_SECRET_ACCESS_KEY",
            "apiKey",
            "APIKey",
            "api_key",
            "API-KEY",
            "apikey",
            "openai_api_key",
            "OPENAI_API_KEY_2",
            "x-api-key",
            "Authorization",
            "Proxy-Authorization",
            "Cookie",
            "Set-Cookie",
            "private_key",
            "privateKey",
            "SSH_KEY",
            "credentials",
            "_auth",
            "npm_config__auth",
            "DB_PASS",
            "password_hash",
            "tokenValue",
            "refresh_tokens",
            "secret_id",
            "token2",
            "pin",
            "bearer",
            "idToken",
        ] {
            assert!(is_secret_name(name), "{name} should be secret");
        }
    }

    #[test]
    fn names_that_only_resemble_secrets_are_unchanged() {
        for name in [
            "",
            "_",
            "42",
            "tokenizer",
            "author",
            "authors",
            "authority",
            "max_tokens",
            "maxTokens",
            "prompt_tokens",
            "total_tokens",
            "token_count",
            "tokenType",
            "token_limit",
            "token_endpoint",
            "secretName",
            "secretary",
            "password_policy",
            "cookiecutter",
            "key",
            "keyFingerprint",
            "idempotencyKey",
            "idempotencyKeyHash",
            "sessionKey",
            "actorId",
            "requestId",
            "correlationId",
            "primary_key",
            "keyboard",
            "passenger",
            "compass",
            "access_key_id",
            "path",
            "content",
            "pinned",
            "toolCallId",
            "bypass",
        ] {
            assert!(!is_secret_name(name), "{name} should not be secret");
        }
    }

    #[test]
    fn a_name_is_judged_by_its_end_however_long_it_is() {
        assert!(is_secret_name(&format!("{}_token", "é".repeat(100_000))));
        assert!(!is_secret_name(&"é_".repeat(100_000)));
    }
}
