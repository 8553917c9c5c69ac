//! Construction of new messages.

use steadfast_json::scan::write_string;

use super::{MessageShape, RpcId, RpcMessage, locate};
use crate::json_text::JsonText;

impl RpcMessage {
    /// Creates a request.
    pub fn request(id: &RpcId, method: &str, params: Option<&JsonText>) -> Self {
        let mut text = begin(Some(id));
        with_method(&mut text, method, params);
        built(text, MessageShape::Request)
    }

    /// Creates a notification.
    pub fn notification(method: &str, params: Option<&JsonText>) -> Self {
        let mut text = begin(None);
        with_method(&mut text, method, params);
        built(text, MessageShape::Notification)
    }

    /// Creates a response with a result.
    pub fn result_response(id: &RpcId, result: &JsonText) -> Self {
        let mut text = begin(Some(id));
        text.push_str(",\"result\":");
        text.push_str(result.as_str());
        built(text, MessageShape::Result)
    }

    /// Creates a response with an error. It has no id if the id of the request could not be read, as MCP requires.
    pub fn error_response(id: Option<&RpcId>, code: i64, message: &str, data: Option<&JsonText>) -> Self {
        let mut text = begin(id);
        text.push_str(&format!(",\"error\":{{\"code\":{code},\"message\":"));
        write_string(&mut text, message);
        if let Some(data) = data {
            text.push_str(",\"data\":");
            text.push_str(data.as_str());
        }
        text.push('}');
        built(text, MessageShape::Error)
    }
}

fn begin(id: Option<&RpcId>) -> String {
    let mut text = String::from("{\"jsonrpc\":\"2.0\"");
    if let Some(id) = id {
        text.push_str(",\"id\":");
        text.push_str(id.as_str());
    }
    text
}

fn with_method(text: &mut String, method: &str, params: Option<&JsonText>) {
    text.push_str(",\"method\":");
    write_string(text, method);
    if let Some(params) = params {
        text.push_str(",\"params\":");
        text.push_str(params.as_str());
    }
}

fn built(mut text: String, shape: MessageShape) -> RpcMessage {
    text.push('}');
    // A name that is repeated across the parts (such as twice in the parameters) is only detected here. Such a
    // message keeps no places, and is sent as requested.
    let (places, breaks) = locate(text.as_bytes()).unwrap_or((Default::default(), true));
    let message = RpcMessage { text: text.into(), places, shape, spelled: None, breaks };
    message.clone().judged().unwrap_or(message)
}
