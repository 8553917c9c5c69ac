//! One server fails, the others stay free (RP-16): two gateways that share what they know.

use serde_json::json;

use crate::world::World;

#[test]
fn rp_16_one_server_fails_and_the_others_stay_free() {
    let rule = "[domains.\"atlassian\"]\ntrust.count = 2\ntrust.window = \"5m\"\n";
    // Only what hangs has a short time to answer.
    let hanging =
        "[tools.\"atlassian/look\"]\ntimeout = \"3s\"\n[tools.\"atlassian/draw\"]\ntimeout = \"3s\"\n";
    World::each(
        "rp_16_others",
        &format!("guard.mode = \"off\"\nretry.attempts = 1\n{rule}{hanging}"),
        |world| {
            let mut atlassian = world.client_of("atlassian", |_| {});
            let mut github = world.client_of("github", |_| {});
            // Two failures, of two tools.
            for (tool, id) in [("look", "a"), ("draw", "b")] {
                let said = atlassian.call(tool, json!({ "id": id, "fault": "hang" }));
                assert!(said.is_error && said.code.as_deref() != Some("approval_required"), "{said:?}");
            }
            // All tools of the server ask, also those that never failed, and nothing of them runs.
            for tool in ["look", "draw", "pay", "sort"] {
                let said = atlassian.call(tool, json!({ "id": "c" }));
                assert_eq!(
                    (said.is_error, said.code.as_deref()),
                    (true, Some("approval_required")),
                    "{said:?}"
                );
                assert!(said.text.contains("atlassian"), "it says what has lost trust: {said:?}");
                assert_eq!(world.count(&format!("{tool} c")), 0);
            }
            // Those of the other server do not, whatever they are called, also where it begins only now.
            let mut later = world.client_of("github", |_| {});
            for tool in ["look", "draw", "pay", "sort"] {
                assert_eq!(github.call(tool, json!({ "id": "g" })).text, format!("{tool} g, run 1"));
                assert_eq!(later.call(tool, json!({ "id": "h" })).text, format!("{tool} h, run 1"));
            }
            // A gateway that is started later in front of the same server knows.
            let said = world.client_of("atlassian", |_| {}).call("sort", json!({ "id": "d" }));
            assert_eq!(said.code.as_deref(), Some("approval_required"), "{said:?}");
            // The session goes on.
            atlassian.request("ping", json!({}));
            assert!(atlassian.request("tools/list", json!({}))["result"].is_object());
            // A person forgives the server, and nothing else.
            let (said, good) = world.steadfast(&["reset", "domain:atlassian"]);
            assert!(good && said == "forgiven: domain:atlassian\n", "{said}");
            let said = world.client_of("atlassian", |_| {}).call("sort", json!({ "id": "e" }));
            assert_eq!(said.text, "sort e, run 1");
        },
    );
}

#[test]
fn rp_8_a_client_that_wants_to_hear_of_it_is_told_of_an_outcome_that_is_unknown() {
    World::each("rp_8_unknown", "guard.mode = \"off\"\n", |world| {
        let mut client = world.client();
        assert_eq!(client.request("logging/setLevel", json!({ "level": "info" }))["result"], json!({}));
        let said = client.call("pay", json!({ "id": "a", "fault": "die_after" }));
        assert_eq!(said.code.as_deref(), Some("outcome_unknown"), "{said:?}");
        let heard = client.told("notifications/message");
        let data = &heard["params"]["data"];
        assert_eq!(
            (&data["event"], &data["tool"]["tool"]),
            (&json!("outcome_unknown"), &json!("pay")),
            "{heard}"
        );
        // In the newer era a call asks for itself.
        let mut modern = world.modern_client(json!({}));
        let loud = json!({ "io.modelcontextprotocol/logLevel": "info" });
        for (meta, heard) in [(json!({}), 0), (loud, 1)] {
            let arguments = json!({ "id": format!("b{heard}"), "fault": "die_after" });
            let said = modern.call_with("pay", arguments, meta);
            assert_eq!(said.code.as_deref(), Some("outcome_unknown"), "{said:?}");
            assert_eq!(modern.unheard("notifications/message"), heard);
        }
    });
}
