//! The same clients over HTTP, and servers over HTTP.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;
use steadfast_testkit::effort::TestEffort;

use super::clients::{PythonClient, beginnings, use_tools};
use super::{RealServer, RealServerFolder, ServerRoute, installed};
use crate::world::{LISTEN, ReservedPort, TestProcess, TestTransport, start_gateway};

/// A program that listens.
pub(super) struct ListeningServer {
    _process: TestProcess,
    _port: Option<ReservedPort>,
    address: SocketAddr,
}

impl ListeningServer {
    /// Starts a program that has to be given a port.
    pub(super) fn at(port: ReservedPort, mut command: Command) -> Self {
        Self { _process: port.start(&mut command), address: port.address(), _port: Some(port) }
    }

    /// Starts a gateway, which announces its address.
    pub(super) fn announced(mut command: Command) -> Self {
        let (process, address) = start_gateway(&mut command);
        Self { _process: process, _port: None, address }
    }

    /// Starts a gateway that listens, in front of a child server or of one that listens too.
    pub(super) fn gateway(place: &RealServerFolder, server: RealServer, back: TestTransport) -> Vec<Self> {
        let mut command = place.program(env!("CARGO_BIN_EXE_steadfast-tested"));
        command.args(["wrap", "--name", "real"]).args(LISTEN);
        let mut all = Vec::new();
        match back {
            TestTransport::Stdio => command.arg("--").args(server.line(ServerRoute::Bare)),
            TestTransport::Http => {
                let port = ReservedPort::reserve();
                let server = server.env("PORT", port.address().port().to_string());
                let server = Self::at(port, server.command(place, ServerRoute::Bare));
                command.args(["--url", &server.url()]);
                all.push(server);
                &mut command
            }
        };
        all.insert(0, Self::announced(command));
        all
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }
}

/// Runs both Python clients, in both eras, over HTTP in front of a server with this transport.
fn python_clients(back: TestTransport) {
    let effort = TestEffort::of_this_run();
    for library in effort.cases(vec!["mcp", "fastmcp"]) {
        let place = RealServerFolder::new(&format!("real_http_{library}_{back:?}"), "");
        let server = RealServer::python(&format!("server_{library}.py"));
        let gateway = ListeningServer::gateway(&place, server, back);
        for (mode, version) in effort.cases(beginnings()) {
            use_tools(PythonClient::of(&place, library, mode, &[OsString::from(gateway[0].url())]), version);
        }
    }
}

#[test]
fn clients_in_python_work_over_http_before_a_server_that_is_started() {
    python_clients(TestTransport::Stdio);
}

#[test]
fn clients_in_python_work_over_http_before_a_server_at_a_url() {
    python_clients(TestTransport::Http);
}

#[test]
fn the_inspector_lists_and_calls_over_http() {
    for back in TestTransport::cases() {
        let place = RealServerFolder::new(&format!("real_http_inspector_{back:?}"), "");
        let mode = if back == TestTransport::Stdio { "stdio" } else { "streamableHttp" };
        let gateway =
            ListeningServer::gateway(&place, RealServer::node("mcp-server-everything").arg(mode), back);
        let inspect = |method: &[&str]| -> Value {
            let mut command = place.program(installed("node").join("node_modules/.bin/mcp-inspector"));
            command.args(["--cli", &gateway[0].url(), "--transport", "http", "--method"]).args(method);
            let output = command.output().unwrap();
            assert!(output.status.success(), "{method:?}: {output:?}");
            serde_json::from_slice(&output.stdout).expect("it prints JSON")
        };
        let tools = inspect(&["tools/list"]);
        assert!(tools.to_string().contains("\"get-sum\""), "{tools}");
        let sum = inspect(&["tools/call", "--tool-name", "get-sum", "--tool-arg", "a=1", "b=2"]);
        assert!(sum.to_string().contains("The sum of 1 and 2 is 3."), "{sum}");
    }
}
