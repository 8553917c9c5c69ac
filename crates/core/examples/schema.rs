//! Writes the JSON Schemas of the wire formats into a folder. `cargo xtask gen` runs it.
//!
//! This is an example, not a package: it needs no further dependencies, and a package that enables
//! the `schema` feature would enable it in every build of the workspace.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use schemars::Schema;
use schemars::generate::SchemaSettings;
use steadfast_core::envelope::{CallEnvelope, ResultEnvelope, TurnEnvelope};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(env::args_os().nth(1).ok_or("give the folder to write to")?);
    fs::create_dir_all(&folder)?;
    let write = |name: &str, schema: Schema| -> Result<(), Box<dyn Error>> {
        Ok(fs::write(folder.join(name), format!("{}\n", serde_json::to_string_pretty(&schema)?))?)
    };
    // A call is read and a result is written. The optional fields differ between the two.
    let read = || SchemaSettings::draft2020_12().for_deserialize().into_generator();
    let written = SchemaSettings::draft2020_12().for_serialize().into_generator();
    write("call-envelope.json", read().into_root_schema_for::<CallEnvelope>())?;
    write("turn-envelope.json", read().into_root_schema_for::<TurnEnvelope>())?;
    write("result-envelope.json", written.into_root_schema_for::<ResultEnvelope>())
}
