//! The admin token, which authorizes operators. It is required on this machine too, because agents run here.
//!
//! It is created at the first start and stored beside the state, readable only for its user, where the other commands
//! find it.

use std::env;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use steadfast::call::redact::Redacted;
use steadfast::config::Config;
use steadfast_api::AdminToken;

use crate::support::output;
use crate::support::private_file;

/// Variable that replaces the file.
pub(crate) const VARIABLE: &str = "STEADFAST_ADMIN_TOKEN";
const FILE: &str = "admin-token";

/// Returns the token, and creates it if there is none. Without a folder to store it in there is no token, and the
/// admin API is disabled.
pub(crate) fn find_or_create(config: &Config) -> Option<AdminToken> {
    if let Some(token) = given() {
        return AdminToken::new(token.expose());
    }
    let file = place(config)?;
    match read_or_create(&file) {
        Ok(token) => AdminToken::new(&token),
        Err(error) => {
            tracing::warn!(
                event = "admin_token.missing",
                "why" = %error,
                "the admin token cannot be stored, so the admin API is disabled; set {VARIABLE} or make the folder of the state writable"
            );
            None
        }
    }
}

/// Describes the location of the token for an operator. Never contains the token itself.
pub(crate) fn described(config: &Config) -> String {
    if given().is_some() {
        return format!("the value of {VARIABLE}");
    }
    match place(config) {
        Some(file) if private_file::read(&file).is_ok_and(|token| !token.trim().is_empty()) => {
            format!("in {}", file.display())
        }
        Some(_) | None => format!("none, so the admin API is disabled; set {VARIABLE}"),
    }
}

/// Returns the token from the environment or the file, if there is one. Creates none.
pub(crate) fn find(config: &Config) -> Option<Redacted<String>> {
    given().or_else(|| match private_file::read(&place(config)?) {
        Ok(token) => not_empty(&token),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            output::print_message(&format!("note: the admin token cannot be shown: {error}"));
            None
        }
    })
}

/// Returns the token of the environment.
pub(crate) fn given() -> Option<Redacted<String>> {
    env::var(VARIABLE).ok().and_then(|token| not_empty(&token))
}

/// Returns a token as it is sent: leading and trailing blanks get lost in transit.
fn not_empty(token: &str) -> Option<Redacted<String>> {
    let token = token.trim();
    (!token.is_empty()).then(|| Redacted::new(token.to_owned()))
}

/// Returns the path of its file.
pub(crate) fn place(config: &Config) -> Option<PathBuf> {
    Some(config.global().store.path.as_ref()?.parent()?.join(FILE))
}

fn read_or_create(file: &Path) -> io::Result<String> {
    match private_file::read(file) {
        Ok(token) if !token.trim().is_empty() => return Ok(token.trim().to_owned()),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(_) | Err(_) => {}
    }
    if let Some(folder) = file.parent() {
        private_folder().create(folder)?;
    }
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    // Created atomically: another process may do the same at this moment, and the first one wins.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let fresh = file.with_extension(format!("{}-{number}", std::process::id()));
    // Left behind by a dead process with the same process id.
    let _ = fs::remove_file(&fresh);
    private_file().open(&fresh)?.write_all(token.as_bytes())?;
    let linked = fs::hard_link(&fresh, file);
    fs::remove_file(&fresh)?;
    match linked {
        Ok(()) => Ok(token),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let token = private_file::read(file)?.trim().to_owned();
            if token.is_empty() {
                Err(io::Error::other(format!("{} is empty", file.display())))
            } else {
                Ok(token)
            }
        }
        Err(error) => Err(error),
    }
}

pub(crate) fn private_folder() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}

pub(crate) fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_created_once_and_readable_only_by_its_user() {
        let folder = env::temp_dir().join(format!("steadfast-admin-token-{}", std::process::id()));
        let file = folder.join("deep").join(FILE);
        let tokens: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| read_or_create(&file))).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap().ok()).collect()
        });
        let first = read_or_create(&file).unwrap();
        assert_eq!(first.len(), 64);
        assert!(!tokens.is_empty() && tokens.iter().all(|token| *token == first), "{tokens:?}");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
        }
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
        fs::remove_dir_all(&folder).unwrap();
    }
}
