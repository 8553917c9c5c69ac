//! Numbers with their bounds and units.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Value as Json, json};
use steadfast_core::policy::{GrowthFactor, RateLimit, Ratio};

use super::SettingKind;
use crate::node::{ConfigNode, RawNode};
use crate::read_context::ReadContext;

/// A whole number.
pub(crate) struct Count(pub(crate) RangeInclusive<u32>);

impl SettingKind<u32> for Count {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<u32> {
        let number = whole(node).and_then(|number| u32::try_from(number).ok());
        let number = number.filter(|number| self.0.contains(number));
        if number.is_none() {
            let too_large = whole(node).is_some_and(|number| number > i64::from(*self.0.end()));
            let nearest = if too_large { self.0.end() } else { self.0.start().max(&1) };
            cx.wrong(
                node,
                &SettingKind::<u32>::takes(self),
                format!("write for example {}", cx.with(nearest)),
            );
        }
        number
    }

    fn show(&self, value: &u32) -> String {
        value.to_string()
    }

    fn takes(&self) -> String {
        format!("a whole number from {} to {}", self.0.start(), self.0.end())
    }

    fn schema(&self) -> Json {
        json!({ "type": "integer", "minimum": self.0.start(), "maximum": self.0.end() })
    }
}

impl SettingKind<NonZeroU32> for Count {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<NonZeroU32> {
        SettingKind::<u32>::read(self, node, cx).and_then(NonZeroU32::new)
    }

    fn show(&self, value: &NonZeroU32) -> String {
        value.to_string()
    }

    fn takes(&self) -> String {
        SettingKind::<u32>::takes(self)
    }

    fn schema(&self) -> Json {
        SettingKind::<u32>::schema(self)
    }
}

/// A whole number that may be negative: a code.
pub(crate) struct Number(pub(crate) RangeInclusive<i64>);

impl<T: TryFrom<i64> + Copy + Into<i64>> SettingKind<T> for Number {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<T> {
        let number =
            whole(node).filter(|number| self.0.contains(number)).and_then(|number| T::try_from(number).ok());
        if number.is_none() {
            cx.wrong(node, &SettingKind::<T>::takes(self), "write the number without quotes");
        }
        number
    }

    fn show(&self, value: &T) -> String {
        let number: i64 = (*value).into();
        number.to_string()
    }

    fn takes(&self) -> String {
        format!("a whole number from {} to {}", self.0.start(), self.0.end())
    }

    fn schema(&self) -> Json {
        json!({ "type": "integer", "minimum": self.0.start(), "maximum": self.0.end() })
    }
}

/// A duration.
pub(crate) struct DurationKind(pub(crate) RangeInclusive<Duration>);

impl SettingKind<Duration> for DurationKind {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Duration> {
        let takes = self.takes();
        let parsed = node.text().and_then(parse_span);
        let Some(span) = parsed else {
            let help = match whole(node) {
                Some(number) if number >= 0 => {
                    let with = |unit: &str| cx.with(format!("\"{number}{unit}\""));
                    format!("give it a unit: {} or {}", with("s"), with("ms"))
                }
                Some(_) | None => {
                    "write a number with its unit: \"1500ms\", \"30s\", \"2m\", \"24h\"".to_owned()
                }
            };
            cx.wrong(node, &takes, help);
            return None;
        };
        if !self.0.contains(&span) {
            let nearest = if span < *self.0.start() { self.0.start() } else { self.0.end() };
            cx.wrong(node, &takes, format!("the nearest that is allowed is \"{}\"", show_span(*nearest)));
            return None;
        }
        Some(span)
    }

    fn show(&self, value: &Duration) -> String {
        format!("\"{}\"", show_span(*value))
    }

    fn takes(&self) -> String {
        format!("a span of time from {} to {}", show_span(*self.0.start()), show_span(*self.0.end()))
    }

    fn schema(&self) -> Json {
        json!({ "type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$", "examples": ["30s", "1500ms", "2m", "24h"] })
    }
}

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Parses a duration such as `"30s"`: a whole number and one unit.
pub fn parse_span(text: &str) -> Option<Duration> {
    let (number, unit) = number_and_unit(text)?;
    let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*millis).map(Duration::from_millis)
}

/// Shows a duration in the largest unit that leaves a whole number.
pub(crate) fn show_span(span: Duration) -> String {
    let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let (unit, size) = UNITS
        .iter()
        .rev()
        .find(|(_, size)| millis > 0 && millis.is_multiple_of(*size))
        .unwrap_or(&("s", 1000));
    // A day is shown in hours, because "24h" is the usual form.
    if *unit == "d" && millis == *size { "24h".to_owned() } else { format!("{}{unit}", millis / size) }
}

/// A number of bytes.
pub(crate) struct Size(pub(crate) RangeInclusive<usize>);

impl SettingKind<usize> for Size {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<usize> {
        let size = node.text().and_then(parse_size).filter(|size| self.0.contains(size));
        if size.is_none() {
            let help = "write a number with its unit: \"64KiB\", \"8MiB\", \"1GiB\" (1 KiB is 1024 bytes)";
            cx.wrong(node, &self.takes(), help);
        }
        size
    }

    fn show(&self, value: &usize) -> String {
        format!("\"{}\"", show_size(*value))
    }

    fn takes(&self) -> String {
        format!("a size from {} to {}", show_size(*self.0.start()), show_size(*self.0.end()))
    }

    fn schema(&self) -> Json {
        json!({ "type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB)$", "examples": ["64KiB", "8MiB"] })
    }
}

const SIZES: [(&str, usize); 4] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

fn parse_size(text: &str) -> Option<usize> {
    let (number, unit) = number_and_unit(text)?;
    let (_, bytes) = SIZES.iter().find(|(name, _)| *name == unit)?;
    usize::try_from(number).ok()?.checked_mul(*bytes)
}

fn show_size(bytes: usize) -> String {
    let (unit, size) =
        SIZES.iter().rev().find(|(_, size)| bytes > 0 && bytes.is_multiple_of(*size)).unwrap_or(&("B", 1));
    format!("{}{unit}", bytes / size)
}

fn number_and_unit(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at_checked(end)?;
    Some((number.parse().ok()?, unit.strip_prefix(' ').unwrap_or(unit)))
}

/// A share from 0 to 1.
pub(crate) struct ShareKind;

impl SettingKind<Ratio> for ShareKind {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Ratio> {
        let ratio = any_number(node).and_then(|number| Ratio::new(number).ok());
        if ratio.is_none() {
            let help = match any_number(node) {
                Some(percent) if percent > 1.0 && percent <= 100.0 => {
                    format!("for {percent} percent write {}", cx.with(percent / 100.0))
                }
                Some(_) | None => format!("write for example {}", cx.with("0.5")),
            };
            cx.wrong(node, &self.takes(), help);
        }
        ratio
    }

    fn show(&self, value: &Ratio) -> String {
        value.get().to_string()
    }

    fn takes(&self) -> String {
        "a share from 0 to 1".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": "number", "minimum": 0, "maximum": 1 })
    }
}

/// A growth factor per step.
pub(crate) struct Growth;

impl SettingKind<GrowthFactor> for Growth {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<GrowthFactor> {
        let factor = any_number(node).and_then(|number| GrowthFactor::new(number).ok());
        if factor.is_none() {
            let help = format!("write {} to double each time, 1 for always the same", cx.with("2"));
            cx.wrong(node, &self.takes(), help);
        }
        factor
    }

    fn show(&self, value: &GrowthFactor) -> String {
        value.get().to_string()
    }

    fn takes(&self) -> String {
        "a number from 1 to 1000".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": "number", "minimum": 1, "maximum": 1000 })
    }
}

/// A rate: `"10/1s"`.
pub(crate) struct RateKind;

impl SettingKind<RateLimit> for RateKind {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<RateLimit> {
        let parsed = node.text().and_then(|text| {
            let (attempts, per) = text.split_once('/')?;
            let per = parse_span(per.trim()).or_else(|| parse_span(&format!("1{}", per.trim())))?;
            let limit = RateLimit { attempts: attempts.trim().parse().ok()?, per };
            (!limit.per.is_zero()).then_some(limit)
        });
        if parsed.is_none() {
            let help = format!("write for example {} for ten in a second", cx.with("\"10/1s\""));
            cx.wrong(node, &self.takes(), help);
        }
        parsed
    }

    fn show(&self, value: &RateLimit) -> String {
        format!("\"{}/{}\"", value.attempts, show_span(value.per))
    }

    fn takes(&self) -> String {
        "a number per time, such as \"10/1s\"".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": "string", "pattern": "^[0-9]+ ?/ ?[0-9]*(ms|s|m|h|d)$", "examples": ["10/1s"] })
    }
}

fn whole(node: &ConfigNode) -> Option<i64> {
    match &node.raw {
        RawNode::Integer(number) => Some(*number),
        RawNode::Loose(text) => text.trim().parse().ok(),
        RawNode::Boolean(_)
        | RawNode::Float(_)
        | RawNode::String(_)
        | RawNode::Foreign(_)
        | RawNode::Array(_)
        | RawNode::Table(_) => None,
    }
}

pub(super) fn any_number(node: &ConfigNode) -> Option<f64> {
    match &node.raw {
        #[expect(clippy::cast_precision_loss, reason = "shares and factors are far below 2^53")]
        RawNode::Integer(number) => Some(*number as f64),
        RawNode::Float(number) => Some(*number),
        RawNode::Loose(text) => text.trim().parse().ok(),
        RawNode::Boolean(_)
        | RawNode::String(_)
        | RawNode::Foreign(_)
        | RawNode::Array(_)
        | RawNode::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_sizes_are_shown_as_they_are_written() {
        for text in ["0s", "1ms", "1500ms", "30s", "2m", "24h", "90m", "7d"] {
            assert_eq!(parse_span(text).map(show_span).as_deref(), Some(text));
        }
        for text in ["0B", "1B", "64KiB", "8MiB", "1GiB"] {
            assert_eq!(parse_size(text).map(show_size).as_deref(), Some(text));
        }
        assert_eq!(parse_span("1 h"), Some(Duration::from_secs(3600)));
    }

    #[test]
    fn invalid_durations_are_refused() {
        for text in [
            "",
            "s",
            "30",
            "30 sec",
            "-1s",
            "1.5s",
            "1h30m",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            assert_eq!(parse_span(text), None, "{text}");
        }
        for text in ["8MB", "8", "MiB", "18446744073709551615GiB"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
