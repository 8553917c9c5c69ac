//! Which variables a child gets: those it is given, and a few of ours that programs do not run without.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;

/// The variables of ours that a child gets although nobody gave them to it. A `*` at the end stands for any rest.
///
/// None of them is meant to hold a secret. The proxies can hold one; they are here because `npx` and `uvx` reach
/// no registry without them where there is a proxy.
///
/// | variables | why |
/// | --- | --- |
/// | `PATH`, `HOME`, `USER`, `LOGNAME`, `SHELL`, `TERM`, `TMPDIR`, `TZ` | programs find themselves and their files with them |
/// | `LANG`, `LANGUAGE`, `LC_*` | without them, text that is not ASCII is garbled |
/// | `XDG_*` | where caches, settings and the user's session are |
/// | `DISPLAY`, `WAYLAND_DISPLAY`, `XAUTHORITY` | servers that drive a browser show it |
/// | `SSL_CERT_FILE`, `SSL_CERT_DIR`, `NODE_EXTRA_CA_CERTS` | which certificates are believed here |
/// | `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, in both cases | the way out |
/// | `NVM_DIR`, `FNM_DIR`, `VOLTA_HOME`, `ASDF_DIR`, `ASDF_DATA_DIR`, `PNPM_HOME`, `BUN_INSTALL`, `PYENV_ROOT` | shims of `node` and `python` find the version to run |
/// | `npm_config_cache`, `npm_config_prefix`, `npm_config_registry` | where `npx` finds and keeps packages |
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

/// All variables that a child gets. Shows its names only: values are often secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// What of `own` is [`ALLOWED`], and everything of `given`, which goes before. For servers that a configuration
    /// names: what else stands in our environment is not meant for them.
    pub fn allowed_and(
        own: impl IntoIterator<Item = (OsString, OsString)>,
        given: &BTreeMap<String, String>,
    ) -> Self {
        Self::of(own.into_iter().filter(|(name, value)| is_allowed(name) && !is_function(value)), given)
    }

    /// All of `own`, and everything of `given`, which goes before. For `wrap`: there the client made our environment
    /// for the server, and nobody can tell its part of it from the rest.
    pub fn inherited_and(
        own: impl IntoIterator<Item = (OsString, OsString)>,
        given: &BTreeMap<String, String>,
    ) -> Self {
        Self::of(own, given)
    }

    /// The same with one more variable, which goes before one of the same name.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// Each name with its value, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.variables.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// The value of a variable.
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
        // Windows does not tell `Path` from `PATH`.
        None if cfg!(windows) => name.eq_ignore_ascii_case(allowed),
        None => name == *allowed,
    })
}

/// Old shells pass functions on in variables; a value that is one could run in whatever shell the child starts.
fn is_function(value: &OsStr) -> bool {
    value.as_encoded_bytes().starts_with(b"()")
}

/// Windows keeps the current folder of each drive in variables that begin with `=`; no program can be given those.
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
    fn a_child_gets_what_it_is_given_and_what_is_allowed_and_nothing_else() {
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
    fn no_allowed_name_says_that_it_is_secret() {
        assert!(ALLOWED.iter().all(|name| !steadfast_core::redact::is_secret_name(name)));
    }
}
