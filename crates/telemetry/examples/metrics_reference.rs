//! Prints the reference page of all metrics; `cargo xtask gen` keeps it in `docs/reference`.

fn main() {
    print!("{}", steadfast_telemetry::reference());
}
