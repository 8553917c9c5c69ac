use super::*;

#[test]
fn a_routed_name_must_be_unique_in_any_case_or_spelling() {
    let scanned = |text: &str| {
        let mut skim = JsonScanner::new(text.as_bytes());
        routed(&mut skim, DEPTH, |skim, _| skim.value(DEPTH).map(drop)).map(drop)
    };
    let many: String = (0..40).map(|number| format!("\"k{number}\":1,")).collect();
    for text in [
        r#"{"method":1,"method":2}"#.to_owned(),
        r#"{"method":1,"\u006dethod":2}"#.to_owned(),
        r#"{"method":1,"Method":2}"#.to_owned(),
        r#"{"other":1,"other":2}"#.to_owned(),
        format!(r#"{{"Method":1,{many}"method":2}}"#),
        format!(r#"{{"k7":1,{many}"x":2}}"#),
    ] {
        assert!(matches!(scanned(&text).unwrap_err().problem, JsonProblem::DuplicateName(_)), "{text}");
    }
    for text in [
        r#"{"method":{"a":1,"a":2}}"#.to_owned(),
        r#"{"other":1,"Other":2}"#.to_owned(),
        format!(r#"{{"a":1,{many}"A":2}}"#),
    ] {
        assert_eq!(scanned(&text), Ok(()), "{text}");
    }
}

#[test]
fn a_value_is_utf8_and_leaves_levels_for_its_message() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(JsonText::parse(nested(DEPTH - ROUTED_LEVELS)).is_ok());
    let wrong = JsonText::parse(nested(DEPTH - ROUTED_LEVELS + 1)).unwrap_err();
    assert_eq!(wrong.problem, JsonProblem::TooDeep);
    let wrong = JsonText::parse(&b"\"a\xff\""[..]).unwrap_err();
    assert_eq!(wrong, JsonSyntaxError { at: 2, problem: JsonProblem::NotUtf8 });
}
