//! The plugin, compiled from its sources as for a release.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::json;

use crate::host::{node, output_of, packages};

/// Returns the sources of the plugin.
pub(crate) fn sources() -> PathBuf {
    repository().join("integrations/openclaw")
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the package of the engine that the plugin stands on.
pub(crate) fn engine_package() -> PathBuf {
    match std::env::var_os("STEADFAST_NODE_PACKAGE") {
        Some(package) => package.into(),
        None => repository().join("tests/openclaw/fake-addon"),
    }
}

/// Returns the folder of the compiled plugin, with the package that it stands on beside it.
pub(crate) fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("openclaw-plugin");
        let _ = fs::remove_dir_all(&folder);
        build(&folder.join("build"));
        let plugin = folder.join("steadfast");
        fs::create_dir_all(plugin.join("node_modules")).unwrap();
        for name in ["package.json", "openclaw.plugin.json", "README.md"] {
            fs::copy(sources().join(name), plugin.join(name)).unwrap();
        }
        fs::rename(folder.join("build/dist"), plugin.join("dist")).unwrap();
        symlink(engine_package(), plugin.join("node_modules/steadfast-node")).unwrap();
        plugin
    })
}

/// Returns the packages that a registry needs for the plugin: the engine, and its native part for this machine, which is
/// a package of its own in a release.
pub(crate) fn engine_packages(folder: &Path) -> Vec<PathBuf> {
    let engine = engine_package();
    let mut packages = vec![engine.clone()];
    let names = fs::read_dir(&engine).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    for file in names.filter(|name| name.ends_with(".node")) {
        // `steadfast-node.linux-x64-gnu.node` is that of `steadfast-node-linux-x64-gnu`.
        let name = file.trim_end_matches(".node").replace('.', "-");
        let package = folder.join(&name);
        fs::create_dir(&package).unwrap();
        fs::copy(engine.join(&file), package.join(&file)).unwrap();
        let manifest = json!({ "name": name, "version": "0.1.0", "main": file, "files": [file] });
        fs::write(package.join("package.json"), manifest.to_string()).unwrap();
        packages.push(package);
    }
    packages
}

/// Compiles the plugin in this folder.
pub(crate) fn build(folder: &Path) {
    copy_folder(&sources().join("src"), &folder.join("src"));
    for name in ["package.json", "tsconfig.json"] {
        fs::copy(sources().join(name), folder.join(name)).unwrap();
    }
    fs::create_dir_all(folder.join("node_modules")).unwrap();
    for name in ["openclaw", "@types"] {
        symlink(packages().join(name), folder.join("node_modules").join(name)).unwrap();
    }
    symlink(engine_package(), folder.join("node_modules/steadfast-node")).unwrap();
    let compiled = output_of(node(folder).arg(packages().join("typescript/bin/tsc")).args(["-p", "."]));
    let errors = String::from_utf8_lossy(&compiled.stdout);
    let errors: Vec<&str> = errors.lines().take(20).collect();
    assert!(compiled.status.success(), "the plugin does not compile:\n{}", errors.join("\n"));
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}
