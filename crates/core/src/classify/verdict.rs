//! The verdict of a rule.

use std::borrow::Cow;
use std::time::Duration;

use super::{AttemptReach, Classification, FaultNature, ModelMistake, Severity};
use crate::code::Code;

/// A verdict and the name of its rule.
#[derive(Clone, Debug)]
pub(super) struct RuleDecision {
    pub(super) verdict: RuleVerdict,
    pub(super) rule: Cow<'static, str>,
}

/// The verdict of a rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleVerdict {
    pub(super) nature: FaultNature,
    pub(super) reach: AttemptReach,
    pub(super) severity: Severity,
    pub(super) mistake: Option<ModelMistake>,
    pub(super) code: Code,
}

impl RuleDecision {
    pub(super) fn into_classified(self, retry_after: Option<Duration>) -> Classification {
        let RuleVerdict { nature, reach, severity, mistake, code } = self.verdict;
        Classification { nature, reach, severity, mistake, retry_after, code, rule: self.rule }
    }
}

impl RuleVerdict {
    pub(super) const fn transient(reach: AttemptReach, severity: Severity, code: Code) -> Self {
        Self { nature: FaultNature::Transient, reach, severity, mistake: None, code }
    }

    pub(super) const fn permanent(reach: AttemptReach, severity: Severity) -> Self {
        Self { nature: FaultNature::Permanent, reach, severity, mistake: None, code: Code::ToolError }
    }

    pub(super) const fn mistake(reach: AttemptReach, mistake: ModelMistake) -> Self {
        let (severity, code) = match mistake {
            ModelMistake::Arguments => (Severity::InvalidInput, Code::InvalidArguments),
            ModelMistake::UnknownTool => (Severity::NotFound, Code::UnknownTool),
        };
        Self { nature: FaultNature::Permanent, reach, severity, mistake: Some(mistake), code }
    }

    pub(super) fn by(self, rule: impl Into<Cow<'static, str>>) -> RuleDecision {
        RuleDecision { verdict: self, rule: rule.into() }
    }

    pub(super) const fn reaching(mut self, reach: AttemptReach) -> Self {
        self.reach = reach;
        self
    }
}
