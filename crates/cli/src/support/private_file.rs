//! Private files that establish trust: accepted only if no other user can have written or read them.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;

/// Reads a private file. Refuses a file that is not private, with advice on how to fix it.
pub(crate) fn read(file: &Path) -> io::Result<String> {
    let describe = |error: io::Error| {
        let kind = error.kind();
        if kind == ErrorKind::NotFound {
            return error;
        }
        io::Error::new(kind, format!("{} is not used: {error}", file.display()))
    };
    let mut text = String::new();
    open(file).and_then(|mut opened| opened.read_to_string(&mut text)).map_err(describe)?;
    Ok(text)
}

#[cfg(unix)]
fn open(file: &Path) -> io::Result<File> {
    use std::os::unix::fs::MetadataExt as _;

    use rustix::fs::{Mode, OFlags};
    use rustix::io::Errno;

    let refused = |reason: String| Err(io::Error::new(ErrorKind::PermissionDenied, reason));
    // `NONBLOCK`, so that opening a pipe does not wait for its other end.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = match rustix::fs::open(file, flags, Mode::empty()) {
        // Some systems have a separate error code for it.
        Err(Errno::LOOP | Errno::MLINK) => return refused(format!("it is a link; {REMEDY}")),
        opened => File::from(opened?),
    };
    let found = opened.metadata()?;
    if !found.is_file() {
        return refused(format!("it is not a file; {REMEDY}"));
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return refused(format!("it belongs to another user (uid {}); {REMEDY}", found.uid()));
    }
    if found.mode() & 0o077 != 0 {
        return refused(format!(
            "others may read or write it; {REMEDY}, or if you know who wrote it: chmod 600 {}",
            file.display()
        ));
    }
    Ok(opened)
}

#[cfg(unix)]
const REMEDY: &str = "remove it and start the gateway again";

#[cfg(not(unix))]
fn open(file: &Path) -> io::Result<File> {
    File::open(file)
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    #[test]
    fn sf_7_a_file_is_accepted_only_if_it_is_private() {
        let folder = std::env::temp_dir().join(format!("steadfast-own-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("file");
        assert_eq!(read(&file).unwrap_err().kind(), ErrorKind::NotFound);
        fs::write(&file, "text").unwrap();
        let allow = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        for (mode, is_accepted) in
            [(0o600, true), (0o400, true), (0o640, false), (0o620, false), (0o602, false)]
        {
            allow(mode);
            assert_eq!(read(&file).is_ok(), is_accepted, "{mode:o}");
        }
        assert!(read(&file).unwrap_err().to_string().contains("chmod 600"));
        allow(0o600);
        let link = folder.join("link");
        symlink(&file, &link).unwrap();
        assert!(read(&link).unwrap_err().to_string().contains("link"));
        assert!(read(&folder).unwrap_err().to_string().contains("not a file"));
        // Only privileged users may change the owner of a file.
        if chown(&file, Some(65_534), None).is_ok() {
            assert!(read(&file).unwrap_err().to_string().contains("another user"));
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
