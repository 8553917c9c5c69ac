//! The packed plugin, installed as users install it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use serde_json::{Value, json};

use crate::host::{HostFolder, all_tools, model, node, output_of};
use crate::model::ModelReply;
use crate::plugin;

/// A package registry with packages of this repository, for one test.
struct PackageRegistry {
    address: SocketAddr,
}

impl PackageRegistry {
    /// Serves these archives, by the names of their packages.
    fn start(archives: BTreeMap<String, (Value, PathBuf)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let archives = Arc::new(archives);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let archives = archives.clone();
                thread::spawn(move || {
                    let _ = answer(&connection, address, &archives);
                });
            }
        });
        Self { address }
    }
}

fn answer(
    mut connection: &TcpStream,
    address: SocketAddr,
    archives: &BTreeMap<String, (Value, PathBuf)>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(connection).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let path = first.split(' ').nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
    let (status, kind, body) = match path.strip_suffix(".tgz").and_then(|name| archives.get(name)) {
        Some((_, archive)) => ("200 OK", "application/octet-stream", fs::read(archive)?),
        None => match archives.get(&path) {
            Some((manifest, _)) => {
                let mut version = manifest.clone();
                version["dist"] = json!({ "tarball": format!("http://{address}/{path}.tgz") });
                let number = version["version"].as_str().unwrap_or_default().to_owned();
                let package = json!({ "name": path, "dist-tags": { "latest": number }, "versions": { number: version } });
                ("200 OK", "application/json", package.to_string().into_bytes())
            }
            None => ("404 Not Found", "application/json", b"{}".to_vec()),
        },
    };
    write!(
        connection,
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    )?;
    connection.write_all(&body)
}

/// Packs a package, and returns its manifest and the archive.
fn pack(package: &Path, into: &Path) -> (Value, PathBuf) {
    let mut command = npm(package);
    command.args(["pack", "--ignore-scripts", "--json", "--pack-destination"]).arg(into);
    let packed = output_of(&mut command);
    let errors = String::from_utf8_lossy(&packed.stderr);
    let report: Value =
        serde_json::from_slice(&packed.stdout).unwrap_or_else(|_| panic!("not packed: {errors}"));
    let file = report[0]["filename"].as_str().unwrap();
    let manifest = fs::read_to_string(package.join("package.json")).unwrap();
    (serde_json::from_str(&manifest).unwrap(), into.join(file))
}

fn npm(folder: &Path) -> Command {
    // The npm of the machine, run by the Node that is first in the path.
    let mut command = node(folder);
    let mut npm = Command::new("npm");
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            npm.env(name, value);
        }
    }
    npm.current_dir(folder);
    command = npm;
    command
}

fn succeeded(command: &mut Command) -> String {
    let output = output_of(command);
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{command:?}: {}", text.join("\n"));
    text[0].clone()
}

#[test]
fn tg_11_the_packed_plugin_installs_into_an_empty_state_folder_and_guards() {
    let folder = HostFolder::new("install");
    let archives = folder.path.join("archives");
    fs::create_dir(&archives).unwrap();
    let registry = plugin::engine_packages(&folder.path).into_iter().map(|package| {
        let (manifest, archive) = pack(&package, &archives);
        (manifest["name"].as_str().unwrap().to_owned(), (manifest, archive))
    });
    let registry = PackageRegistry::start(registry.collect());
    let (_, plugin) = pack(plugin::built(), &archives);

    // A configuration without plugins. Port 0 is not used: nothing listens.
    folder.configure(18_790, &json!({}), &all_tools());
    let openclaw = |arguments: &[&str]| {
        let mut command = folder.openclaw(arguments);
        command.env("npm_config_registry", format!("http://{}/", registry.address));
        command
    };
    let source = format!("npm-pack:{}", plugin.display());
    succeeded(&mut openclaw(&["plugins", "install", &source, "--force", "--accept-capabilities"]));

    let inspected = succeeded(&mut openclaw(&["plugins", "inspect", "steadfast", "--runtime", "--json"]));
    let inspected: Value = serde_json::from_str(&inspected).unwrap();
    let found = &inspected["plugin"];
    assert_eq!((&found["id"], &found["status"]), (&json!("steadfast"), &json!("loaded")), "{inspected:#}");

    // It is loaded with its native part, and guards.
    model().script("installed", |_| ModelReply::call("read", json!({})));
    let message = "go [script installed]";
    let arguments =
        ["agent", "--local", "--agent", "main", "--session-id", "installed", "--message", message, "--json"];
    let run = output_of(&mut openclaw(&arguments));
    assert_eq!(model().requests("installed").len(), 5, "{}", String::from_utf8_lossy(&run.stderr));
}
