//! The surface that a test uses. It follows from the path of the test.

use std::fmt;

/// A surface of Steadfast: one that users have, or one that only developers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Surface {
    /// The gateway, with real clients and servers.
    Mcp,
    /// The HTTP API.
    Http,
    /// The command line.
    Cli,
    /// The dashboard in the browser.
    Page,
    /// The Rust crates that programs depend on: `steadfast`, the stores, the layer for tower. The engine is used
    /// through `steadfast`, with a configuration. The engine's own tests build their inputs directly.
    Crate,
    /// A host with an embedded engine: the packages for Node and Python.
    Host,
    /// The simulation of all decisions of the core.
    Simulation,
    /// Internals of a crate.
    Unit,
}

/// The longest matching prefix decides.
const PLACES: [(&str, Surface); 13] = [
    ("tests/gateway/tests/gateway/api/", Surface::Http),
    ("tests/gateway/tests/gateway/", Surface::Mcp),
    ("tests/gateway/tests/dashboard/", Surface::Page),
    ("tests/simulation/", Surface::Simulation),
    ("tests/", Surface::Crate),
    ("crates/api/tests/", Surface::Http),
    ("crates/cli/tests/", Surface::Cli),
    ("crates/steadfast/tests/", Surface::Crate),
    ("crates/tower/tests/", Surface::Crate),
    ("crates/tools/tests/", Surface::Crate),
    ("crates/store", Surface::Crate),
    ("node/", Surface::Host),
    ("python/", Surface::Host),
];

impl Surface {
    /// Returns the surface of the tests in this file. The path begins at the root of the repository.
    pub(crate) fn of(file: &str) -> Self {
        let file = file.replace('\\', "/");
        let fits = PLACES.iter().filter(|(place, _)| file.starts_with(place));
        let is_inside = file.starts_with("crates/") && file.contains("/src/");
        fits.max_by_key(|(place, _)| place.len())
            .filter(|_| !is_inside)
            .map_or(Self::Unit, |(_, surface)| *surface)
    }

    /// True if users have this surface.
    pub(crate) fn is_of_users(self) -> bool {
        match self {
            Self::Mcp | Self::Http | Self::Cli | Self::Page | Self::Crate | Self::Host => true,
            Self::Simulation | Self::Unit => false,
        }
    }
}

impl fmt::Display for Surface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mcp => "MCP",
            Self::Http => "HTTP",
            Self::Cli => "CLI",
            Self::Page => "page",
            Self::Crate => "crate",
            Self::Host => "host",
            Self::Simulation => "simulation",
            Self::Unit => "unit",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_test_determines_its_surface() {
        for (file, surface) in [
            ("tests/gateway/tests/gateway/faults.rs", Surface::Mcp),
            ("tests/gateway/tests/gateway/api/calls.rs", Surface::Http),
            ("tests/gateway/tests/dashboard/main.rs", Surface::Page),
            ("tests/simulation/tests/worlds.rs", Surface::Simulation),
            ("tests/conformance/src/outage.rs", Surface::Crate),
            ("crates/store-redis/tests/redis/login.rs", Surface::Crate),
            ("crates/steadfast/tests/measured/errors.rs", Surface::Crate),
            ("crates/executor/tests/turns/mod.rs", Surface::Unit),
            ("crates/store-sqlite/src/tests/crash.rs", Surface::Unit),
            ("crates/config/tests/others.rs", Surface::Unit),
            ("crates/core/src/trust/tests/keeping.rs", Surface::Unit),
            ("crates/cli/tests/approvals.rs", Surface::Cli),
            ("node/test/plugin.test.mjs", Surface::Host),
        ] {
            assert_eq!(Surface::of(file), surface, "{file}");
        }
    }
}
