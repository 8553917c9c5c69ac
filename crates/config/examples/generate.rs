//! Writes the JSON Schema and the reference page of the configuration into a folder. `cargo xtask gen` runs it.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use steadfast_config::reference;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(env::args_os().nth(1).ok_or("give the folder to write to")?);
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, text))
    };
    write("schema/config.schema.json", format!("{}\n", serde_json::to_string_pretty(&reference::schema())?))?;
    write("docs/reference/settings.md", reference::page())?;
    Ok(())
}
