//! Legitimate work that resembles a loop.

use super::*;

/// Legitimate work. No call is refused, and no remark is added.
#[test]
fn tg_9_legitimate_sequences_pass_untouched() {
    const CHURN: [&str; 12] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"];
    let read = ok("read", "a");
    let poll = ok("status", "{}").gives(&[7; 32]);
    let corpus: Vec<(&str, Vec<GuardTestStep>)> = vec![
        ("a retry after a transient fault that works", vec![fails("get", "a", "timed out"), ok("get", "a")]),
        (
            "the same again later: each transient fault is followed by a success",
            (0..10).flat_map(|_| [fails("get", "a", "timed out"), ok("get", "a")]).collect(),
        ),
        ("the same call after it succeeded", vec![ok("get", "a"); 30]),
        ("a failure after the same call succeeded", vec![read, read, fails("read", "a", "locked"), read]),
        (
            "changed arguments after each failure until it works",
            vec![
                fails("read", "a", "not found"),
                fails("read", "b", "not found"),
                fails("read", "c", "not found"),
                ok("read", "d"),
            ],
        ),
        ("polling with the same result", (0..200).map(|_| poll.after(5)).collect()),
        ("polling within one turn of the host", (0..200).map(|_| poll.turn("1")).collect()),
        (
            "error words inside a successful output",
            (0..20).map(|_| ok("read", "errors.log: Missing required parameter: path, type error")).collect(),
        ),
        (
            "a long turn with occasional failures, fewer than the limit",
            CHURN
                .iter()
                .flat_map(|n| [ok("read", n), ok("edit", n), ok("list", n)])
                .chain(["x", "y", "z", "w"].map(|n| fails("read", n, "not found")))
                .chain(CHURN.iter().map(|n| ok("read", n)))
                .map(|step| step.turn("1"))
                .collect(),
        ),
        (
            "the same failure in different turns that the host told",
            ["1", "2", "3", "4", "5", "6"].map(|turn| fails("build", "{}", "3 errors").turn(turn)).into(),
        ),
        (
            "the same failure in different guessed turns with work in between",
            (0..6).flat_map(|_| [fails("build", "{}", "3 errors").after(120), ok("edit", "x")]).collect(),
        ),
        (
            "the same arguments for different tools",
            vec![
                fails("stat", "a", "not found"),
                fails("read", "a", "not found"),
                ok("write", "a"),
                ok("read", "a"),
            ],
        ),
        (
            "the same call with another error: the first obstacle is gone",
            vec![
                fails("push", "{}", "not logged in"),
                ok("login", "{}"),
                fails("push", "{}", "rejected"),
                ok("push", "{}"),
            ],
        ),
        (
            "four failures in a row, then a success, again and again, in guessed turns",
            (0..4)
                .flat_map(|_| {
                    ["a", "b", "c", "d"].map(|n| fails("probe", n, n)).into_iter().chain([
                        ok("probe", "a"),
                        ok("probe", "b"),
                        ok("probe", "c"),
                        ok("probe", "d"),
                        ok("e", "e").after(100),
                    ])
                })
                .collect(),
        ),
        (
            "two calls that alternate and both work",
            (0..50).flat_map(|_| [ok("edit", "x"), ok("test", "{}")]).collect(),
        ),
        (
            "alternating edits and failing checks whose errors differ",
            vec![
                ok("edit", "1"),
                fails("test", "{}", "test parses_dates failed"),
                ok("edit", "2"),
                fails("test", "{}", "test keeps_order failed"),
                ok("edit", "3"),
                ok("test", "{}"),
            ],
        ),
        ("calls of many sessions' worth of tools", (0..300).map(|_| ok("t", "x").after(0)).collect()),
    ];
    for (name, steps) in corpus {
        let mut session = GuardSession::new();
        for (number, step) in steps.iter().enumerate() {
            assert_eq!(session.step(*step), GuardVerdict::Ran(vec![]), "{name}, step {}", number + 1);
        }
    }
}

/// Legitimate work that may get remarks, but must never be refused.
#[test]
fn tg_9_unusual_work_gets_remarks_at_most_and_is_never_refused() {
    let test = fails("test", "{}", "3 tests failed");
    let corpus: Vec<(&str, Vec<GuardTestStep>)> = vec![
        ("one malformed call, corrected", vec![malformed("read", "{}", MISSING), ok("read", "a")]),
        (
            "editing and testing in a guessed turn of hours, always with the same failure",
            (0..100).flat_map(|_| [ok("edit", "x").after(30), test.after(30)]).collect(),
        ),
        (
            "hours of work in which something else fails now and then",
            (0..100)
                .flat_map(|_| [ok("read", "x").after(30), fails("read", "y", "not found"), ok("read", "z")])
                .collect(),
        ),
    ];
    for (name, steps) in corpus {
        let mut session = GuardSession::new();
        for (number, step) in steps.iter().enumerate() {
            let verdict = session.step(*step);
            assert!(matches!(verdict, GuardVerdict::Ran(_)), "{name}, step {}: {verdict:?}", number + 1);
            assert!(!verdict.text().contains("[TOOL ERROR LIMIT]"), "{name}, step {}", number + 1);
        }
    }
}
