//! Links the addon so that Node finds it, and so that it stays loaded.

fn main() {
    napi_build::setup();
    // Node unloads an addon when the worker that loaded it ends. The threads of the runtime would run on in code that is
    // gone.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
