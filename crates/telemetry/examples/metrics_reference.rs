//! Prints the reference page of all metrics. `cargo xtask gen` writes it to `docs/reference`.

fn main() {
    print!("{}", steadfast_telemetry::reference());
}
