//! Parts that several commands share: the sources of the configuration, the connection to a running gateway or the store,
//! the parts of a gateway, responses as tables, printing, and failures with their exit codes.

pub(crate) mod access;
pub(crate) mod admin_token;
pub(crate) mod failure;
pub(crate) mod gateways;
pub(crate) mod listener;
pub(crate) mod output;
pub(crate) mod peer;
pub(crate) mod plain_tools;
pub(crate) mod preflight;
pub(crate) mod private_file;
pub(crate) mod process_metrics;
pub(crate) mod recordings;
pub(crate) mod server_tools;
pub(crate) mod setup;
pub(crate) mod shutdown;
pub(crate) mod sources;
pub(crate) mod streams;
pub(crate) mod target;
pub(crate) mod upstream;
pub(crate) mod views;
pub(crate) mod waterfall;
