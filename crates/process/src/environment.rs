//! The environment variables of a child: those that are set for it, and a few inherited ones that programs need.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;

/// The variables that a child inherits although they are not set for it. A `*` at the end stands for any rest.
///
/// None of them is meant to hold a secret. The proxies can hold one; they are included because `npx` and `uvx` cannot
/// reach a registry without them behind a proxy.
///
/// | variables | why |
/// | --- | --- |
/// | `PATH`, `HOME`, `USER`, `LOGNAME`, `SHELL`, `TERM`, `TMPDIR`, `TZ` | location of programs and their files |
/// | `LANG`, `LANGUAGE`, `LC_*` | without them, text that is not ASCII is garbled |
/// | `XDG_*` | location of caches, settings and the user's session |
/// | `DISPLAY`, `WAYLAND_DISPLAY`, `XAUTHORITY` | servers that drive a browser show it |
/// | `SSL_CERT_FILE`, `SSL_CERT_DIR`, `NODE_EXTRA_CA_CERTS` | trusted certificates |
/// | `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, in both cases | access to the network |
/// | `NVM_DIR`, `FNM_DIR`, `VOLTA_HOME`, `ASDF_DIR`, `ASDF_DATA_DIR`, `PNPM_HOME`, `BUN_INSTALL`, `PYENV_ROOT` | shims of `node` and `python` find the version to run |
/// | `npm_config_cache`, `npm_config_prefix`, `npm_config_registry` | location of the packages of `npx` |
/// | `UV_CACHE_DIR`, `UV_TOOL_DIR`, `UV_PYTHON_INSTALL_DIR`, `UV_INDEX_URL`, `UV_DEFAULT_INDEX` | the same for `uvx` |
/// | `SYSTEMROOT`, `SYSTEMDRIVE`, `WINDIR`, `COMSPEC`, `PATHEXT`, `TEMP`, `TMP`, `APPDATA`, `LOCALAPPDATA`, `PROGRAMDATA`, `PROGRAMFILES`, `PROGRAMFILES(X86)`, `USERPROFILE`, `USERNAME`, `HOMEDRIVE`, `HOMEPATH`, `PROCESSOR_ARCHITECTURE`, `NUMBER_OF_PROCESSORS` | Windows programs do not start without some of these |
pub const ALLOWED: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "XDG_*",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "NVM_DIR",
    "FNM_DIR",
    "VOLTA_HOME",
    "ASDF_DIR",
    "ASDF_DATA_DIR",
    "PNPM_HOME",
    "BUN_INSTALL",
    "PYENV_ROOT",
    "npm_config_cache",
    "npm_config_prefix",
    "npm_config_registry",
    "UV_CACHE_DIR",
    "UV_TOOL_DIR",
    "UV_PYTHON_INSTALL_DIR",
    "UV_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "SYSTEMROOT",
    "SYSTEMDRIVE",
    "WINDIR",
    "COMSPEC",
    "PATHEXT",
    "TEMP",
    "TMP",
    "APPDATA",
    "LOCALAPPDATA",
    "PROGRAMDATA",
    "PROGRAMFILES",
    "PROGRAMFILES(X86)",
    "USERPROFILE",
    "USERNAME",
    "HOMEDRIVE",
    "HOMEPATH",
    "PROCESSOR_ARCHITECTURE",
    "NUMBER_OF_PROCESSORS",
];

/// All environment variables of a child. `Debug` shows only the names, because values are often secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// Returns the [`ALLOWED`] part of `own` and all of `given`, which takes precedence. For servers in a
    /// configuration: the rest of the parent's environment is not meant for them.
    pub fn allowed_and(
        own: impl IntoIterator<Item = (OsString, OsString)>,
        given: &BTreeMap<String, String>,
    ) -> Self {
        Self::of(own.into_iter().filter(|(name, value)| is_allowed(name) && !is_function(value)), given)
    }

    /// Returns all of `own` and all of `given`, which takes precedence. For `wrap`: the client made the environment for
    /// the server, and its part cannot be separated from the rest.
    pub fn inherited_and(
        own: impl IntoIterator<Item = (OsString, OsString)>,
        given: &BTreeMap<String, String>,
    ) -> Self {
        Self::of(own, given)
    }

    /// Adds one more variable, which replaces one with the same name.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// Returns the names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.variables.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// Returns the value of a variable.
    pub fn value(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    fn of(own: impl IntoIterator<Item = (OsString, OsString)>, given: &BTreeMap<String, String>) -> Self {
        let mut variables: BTreeMap<_, _> = own.into_iter().filter(|(name, _)| can_be_passed(name)).collect();
        for (name, value) in given {
            variables.insert(name.into(), value.into());
        }
        Self { variables }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.variables.keys()).finish()
    }
}

fn is_allowed(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    ALLOWED.iter().any(|allowed| match allowed.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        // Names are case-insensitive on Windows: `Path` is `PATH`.
        None if cfg!(windows) => name.eq_ignore_ascii_case(allowed),
        None => name == *allowed,
    })
}

/// Returns true for a function that an old shell exports in a variable: a shell that the child starts could execute it.
fn is_function(value: &OsStr) -> bool {
    value.as_encoded_bytes().starts_with(b"()")
}

/// Returns false for variables whose name begins with `=`. Windows keeps the current folder of each drive in them, and
/// they cannot be passed to a program.
fn can_be_passed(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    !name.is_empty() && !name.contains(&b'=') && !name.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(variables: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        variables.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    fn shown(environment: &Environment) -> Vec<String> {
        environment.iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect()
    }

    #[test]
    fn a_child_gets_only_given_and_allowed_variables() {
        let own = own(&[
            ("PATH", "/bin"),
            ("LC_ALL", "C"),
            ("XDG_RUNTIME_DIR", "/run"),
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("PATHOLOGY", "no"),
            ("HOME", "() { echo; }"),
            ("LANG", "de"),
        ]);
        let given =
            BTreeMap::from([("LANG".to_owned(), "C".to_owned()), ("TOKEN".to_owned(), "t".to_owned())]);
        let allowed = Environment::allowed_and(own.clone(), &given);
        assert_eq!(shown(&allowed), ["LANG=C", "LC_ALL=C", "PATH=/bin", "TOKEN=t", "XDG_RUNTIME_DIR=/run"]);
        let inherited = Environment::inherited_and(own, &given);
        assert_eq!(inherited.iter().count(), 8);
        assert_eq!(inherited.value("LANG"), Some(OsStr::new("C")));
        let more = allowed.with("LANG", "de").with("EXTRA", "e");
        assert_eq!(shown(&more)[..2], ["EXTRA=e", "LANG=de"]);
    }

    #[test]
    fn names_that_no_program_can_be_given_are_left_out() {
        let own = own(&[("=C:", "C:\\"), ("", "x"), ("A", "")]);
        assert_eq!(shown(&Environment::inherited_and(own, &BTreeMap::new())), ["A="]);
    }

    #[test]
    fn values_are_not_shown() {
        let given = BTreeMap::from([("TOKEN".to_owned(), "hunter2".to_owned())]);
        assert_eq!(format!("{:?}", Environment::allowed_and([], &given)), r#"["TOKEN"]"#);
    }

    #[test]
    fn no_allowed_name_is_a_secret_name() {
        assert!(ALLOWED.iter().all(|name| !steadfast_redact::is_secret_name(name)));
    }
}
