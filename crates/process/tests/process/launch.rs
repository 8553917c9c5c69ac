//! The environment of a child, and the errors of a failed start.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use steadfast_process::{Environment, Launch, LaunchError, StderrLog};

use crate::common::{all, command, sh, soon};
use crate::{leash, start};

#[tokio::test]
async fn the_environment_is_exactly_as_given() {
    let given = BTreeMap::from([("ONE".to_owned(), "1".to_owned()), ("EMPTY".to_owned(), String::new())]);
    let own = env::vars_os().filter(|(name, _)| name == "PATH");
    let mut launch = command(&["env"]);
    launch.environment = Environment::allowed_and(own, &given);
    let mut started = start(&launch).await;
    let path = env::var("PATH").unwrap();
    let mut environment: Vec<String> = all(&mut started.stdout).await.lines().map(str::to_owned).collect();
    environment.sort_unstable();
    assert_eq!(environment, ["EMPTY=".to_owned(), "ONE=1".to_owned(), format!("PATH={path}")]);
}

#[tokio::test]
async fn name_arguments_and_folder_arrive_as_they_are() {
    let folder = LaunchTestFolder::new("arguments");
    let mut launch = sh("pwd; printf '<%s>' \"$0\" \"$@\"");
    launch.args.extend(["name".into(), "b  c".into(), "".into(), "ü\n".into()]);
    launch.folder = Some(folder.path.clone());
    let mut started = start(&launch).await;
    let output = all(&mut started.stdout).await;
    assert_eq!(output, format!("{}\n<name><b  c><><ü\n>", folder.path.canonicalize().unwrap().display()));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_child_gets_three_handles_and_no_ignored_or_blocked_signal() {
    // The process that started this test may have left inheritable handles open; a plain child shows them.
    let plain = Command::new("ls").arg("/proc/self/fd").output().unwrap();
    let mut started = start(&command(&["ls", "/proc/self/fd"])).await;
    assert_eq!(all(&mut started.stdout).await, String::from_utf8(plain.stdout).unwrap());

    let mut started = start(&command(&["grep", "-E", "SigBlk|SigIgn", "/proc/self/status"])).await;
    let output = all(&mut started.stdout).await;
    let masks: Vec<u64> =
        output.split_whitespace().filter_map(|word| u64::from_str_radix(word, 16).ok()).collect();
    let sigpipe = 1 << 12;
    assert!(matches!(masks[..], [0, ignored] if ignored & sigpipe == 0), "{output}");
}

#[tokio::test]
async fn a_failed_start_is_reported_with_advice() {
    let folder = LaunchTestFolder::new("errors");
    folder.write("plain", "no program", 0o644);
    folder.write("script", "#!/no/such/interpreter\n", 0o755);
    let in_folder = |launch: Launch| Launch { folder: Some(folder.path.clone()), ..launch };
    let nowhere = Launch { folder: Some("/no/such/folder".into()), ..command(&["sh"]) };
    let zero = command(&["sh", "-c", "\0"]);
    let cases: [(&str, Launch, &str); 8] = [
        (
            "not found",
            command(&["no-such-command-here"]),
            "there is no command `no-such-command-here` in PATH; give its full path",
        ),
        ("nothing", command(&[""]), "there is no command ``"),
        (
            "no such path",
            command(&["/no/such/command"]),
            "there is no command `/no/such/command`; check its path",
        ),
        ("a folder", command(&["/tmp"]), "`/tmp` is there but cannot be executed"),
        ("not executable", in_folder(command(&["./plain"])), "plain` is there but cannot be executed"),
        (
            "no interpreter",
            in_folder(command(&["./script"])),
            "but not the program that its first line names",
        ),
        ("no folder", nowhere, "there is no folder `/no/such/folder` to run in"),
        ("zero byte", zero, "a zero byte in its arguments or variables"),
    ];
    for (name, launch, expected) in cases {
        let error = soon(launch.start(&leash(), &StderrLog::new())).await.expect_err(name);
        assert!(error.to_string().contains(expected), "{name}: {error}");
        let refused = matches!(error, LaunchError::Refused { .. });
        assert_eq!(error.is_lasting(), !refused, "{name}");
    }
}

#[tokio::test]
async fn a_program_that_is_not_a_leash_is_detected() {
    let error =
        soon(command(&["true"]).start(&steadfast_process::Leash::of("/bin/true"), &StderrLog::new())).await;
    assert!(matches!(error, Err(LaunchError::Leash { .. })), "{error:?}");
    let missing =
        soon(command(&["true"]).start(&steadfast_process::Leash::of("/no/leash"), &StderrLog::new())).await;
    assert!(matches!(missing, Err(LaunchError::Leash { .. })), "{missing:?}");
}

#[tokio::test]
async fn a_command_name_is_resolved_with_the_path_of_the_child() {
    let folder = LaunchTestFolder::new("path");
    folder.write("known-only-here", "#!/bin/sh\necho found\n", 0o755);
    let path = BTreeMap::from([("PATH".to_owned(), folder.path.display().to_string())]);
    let mut launch = command(&["known-only-here"]);
    launch.environment = Environment::allowed_and(env::vars_os(), &path);
    assert_eq!(all(&mut start(&launch).await.stdout).await, "found\n");
}

/// A folder of a test, removed at its end.
struct LaunchTestFolder {
    path: PathBuf,
}

impl LaunchTestFolder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("steadfast-process-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self { path }
    }

    fn write(&self, name: &str, text: &str, mode: u32) {
        let file: &Path = &self.path.join(name);
        // Written by another process: a file that this process has open for writing is inherited by children of other
        // tests until they execute their program, and cannot be executed for so long.
        let script = "printf '%s' \"$1\" > \"$2\"";
        let written = Command::new("sh").args(["-c", script, "sh", text]).arg(file).status().unwrap();
        assert!(written.success());
        fs::set_permissions(file, PermissionsExt::from_mode(mode)).unwrap();
    }
}

impl Drop for LaunchTestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
