//! One set of policies and entities that was read and checked as a whole.

use std::collections::{BTreeMap, HashMap, HashSet};

use cedar_policy::{
    AuthorizationError, Authorizer, EntityUid, PolicyId, PolicySet, Response, ValidationMode, Validator,
};
use miette::Diagnostic;

use super::annotations::{self, Bounds};
use super::entities::{Groups, check, line_of};
use super::folder::Contents;
use super::open::{self, Kinds};
use super::question::Question;
use super::words::Words;
use super::{Fault, PolicyFolderError};
use crate::policy::bounds;
use crate::policy::{Decision, PolicyRequest};

/// Policies that can be asked.
#[derive(Debug)]
pub(super) struct CheckedSet {
    pub words: Words,
    pub groups: Groups,
    /// What the policies speak of by name.
    pub literals: HashSet<EntityUid>,
    pub kinds: Kinds,
    policies: PolicySet,
    /// Of each permit.
    bounds: HashMap<PolicyId, Bounds>,
    authorizer: Authorizer,
}

/// Where a policy stands.
struct Place<'a> {
    file: &'a str,
    text: &'a str,
    line: usize,
}

impl Place<'_> {
    fn fault(&self, line: Option<usize>, detail: String) -> Fault {
        Fault { file: self.file.to_owned(), line: Some(line.unwrap_or(self.line)), detail }
    }
}

impl CheckedSet {
    /// Reads and checks everything; a single fault refuses the whole.
    pub fn read(contents: &Contents) -> Result<Self, PolicyFolderError> {
        let words = Words::read()?;
        let mut faults = Vec::new();
        let groups = Groups::read(&contents.entities, &words).unwrap_or_else(|found| {
            faults.extend(found);
            Groups::none()
        });
        // What policies say of groups that could not be read would only be more of the same fault.
        let groups_known = faults.is_empty();
        let mut policies = PolicySet::new();
        let mut places = BTreeMap::new();
        let mut bounds = HashMap::new();
        let mut literals = HashSet::new();
        for (file, text) in &contents.policies {
            let parsed: PolicySet = match text.parse() {
                Ok(parsed) => parsed,
                Err(error) => {
                    faults.extend(parse_faults(file, text, &error));
                    continue;
                }
            };
            for template in parsed.templates() {
                let line = template.as_ref().loc().map(|loc| line_of(text, loc.start()));
                let detail = "is a template: ?principal and ?resource are never filled in".to_owned();
                faults.push(Fault { file: file.clone(), line, detail });
            }
            for policy in parsed.policies() {
                let start = policy.as_ref().loc().map_or(0, |loc| loc.start());
                let place = Place { file, text, line: line_of(text, start) };
                let id = match policy.annotation("id") {
                    Some(id) => id.to_owned(),
                    None => format!("{file}:{}:{start}", place.line),
                };
                let policy = policy.new_id(PolicyId::new(&id));
                if groups_known {
                    match annotations::read(&policy, &groups) {
                        Ok(found) => drop(bounds.insert(policy.id().clone(), found)),
                        Err(detail) => faults.push(place.fault(None, detail)),
                    }
                    for uid in policy.entity_literals() {
                        if let Err(detail) = literal(&uid, &groups) {
                            faults.push(place.fault(None, detail));
                        }
                        literals.insert(uid);
                    }
                }
                let own_id = policy.id().clone();
                match policies.add(policy) {
                    Ok(()) => drop(places.insert(own_id, place)),
                    Err(_) => {
                        faults.push(place.fault(None, format!("another policy has the @id {id:?} already")))
                    }
                }
            }
        }
        faults.extend(type_faults(&words, &policies, &places));
        if !faults.is_empty() {
            return Err(PolicyFolderError::Refused(faults));
        }
        literals.retain(|uid| uid.type_name() != words.action("").type_name());
        // A word in a comment or an annotation costs time, nothing else.
        let look = policies.policies().any(|policy| policy.to_string().contains("context"));
        Ok(Self {
            kinds: Kinds::of(look, &literals, &groups),
            literals,
            words,
            groups,
            policies,
            bounds,
            authorizer: Authorizer::new(),
        })
    }

    pub fn policies(&self) -> usize {
        self.policies.num_of_policies()
    }

    pub fn decide(&self, request: &PolicyRequest<'_>) -> Decision {
        self.ask(request).map_or(Decision::Deny, |response| self.decision(request, &response))
    }

    /// The decision, and the ids of the policies that made it: those that permit, those that forbid, or those that failed.
    pub fn explain(&self, request: &PolicyRequest<'_>) -> (Decision, Vec<String>) {
        let Some(response) = self.ask(request) else { return (Decision::Deny, Vec::new()) };
        let diagnostics = response.diagnostics();
        let failed: Vec<_> = diagnostics.errors().map(failed).map(ToString::to_string).collect();
        let mut by = match failed.is_empty() {
            true => diagnostics.reason().map(ToString::to_string).collect(),
            false => failed,
        };
        by.sort();
        (self.decision(request, &response), by)
    }

    fn ask(&self, request: &PolicyRequest<'_>) -> Option<Response> {
        let question = Question::new(self, request)?;
        Some(self.authorizer.is_authorized(&question.request, &self.policies, &question.entities))
    }

    /// A policy that fails denies, whatever the others say: it might have been a `forbid`.
    fn decision(&self, request: &PolicyRequest<'_>, response: &Response) -> Decision {
        let diagnostics = response.diagnostics();
        let mut errors = diagnostics.errors().peekable();
        if errors.peek().is_some() {
            for policy in errors.map(failed) {
                // Not the cause: it repeats ids of subjects.
                tracing::error!(%policy, operation = request.action.as_str(), "a policy failed: denied");
            }
            return Decision::Deny;
        }
        if response.decision() == cedar_policy::Decision::Deny {
            return Decision::Deny;
        }
        let permits = diagnostics.reason().filter_map(|id| {
            let bounds = self.bounds.get(id)?.resolve(request);
            if bounds.admit(request) { open::hold(self, request, id, bounds) } else { None }
        });
        bounds::decide(permits, request)
    }

    /// Whether this policy permits the request and nothing forbids it.
    pub fn permits(&self, request: &PolicyRequest<'_>, permit: &PolicyId) -> bool {
        self.ask(request).is_some_and(|response| {
            let diagnostics = response.diagnostics();
            response.decision() == cedar_policy::Decision::Allow
                && diagnostics.errors().next().is_none()
                && diagnostics.reason().any(|id| id == permit)
        })
    }
}

fn failed(error: &AuthorizationError) -> &PolicyId {
    let AuthorizationError::PolicyEvaluationError(error) = error;
    error.policy_id()
}

/// What a policy names must be something that can be met. A group that nothing is in would make a `forbid` that never forbids.
fn literal(uid: &EntityUid, groups: &Groups) -> Result<(), String> {
    check(uid)?;
    let group = uid.type_name().basename().ends_with("Group");
    if group && !groups.knows(uid) {
        return Err(format!("{uid} is in no entity file"));
    }
    Ok(())
}

fn parse_faults(file: &str, text: &str, errors: &cedar_policy::ParseErrors) -> Vec<Fault> {
    let fault = |error: &cedar_policy::ParseError| Fault {
        file: file.to_owned(),
        line: offset(error).map(|offset| line_of(text, offset)),
        detail: error.to_string(),
    };
    errors.iter().map(fault).collect()
}

/// What contradicts the schema. Warnings too: a policy that can never apply, or letters that look like others.
fn type_faults(words: &Words, policies: &PolicySet, places: &BTreeMap<PolicyId, Place<'_>>) -> Vec<Fault> {
    let result = Validator::new(words.schema.clone()).validate(policies, ValidationMode::Strict);
    let errors =
        result.validation_errors().map(|error| (error.policy_id(), offset(error), error.to_string()));
    let warnings = result
        .validation_warnings()
        .map(|warning| (warning.policy_id(), offset(warning), warning.to_string()));
    let fault = |(id, offset, detail): (&PolicyId, Option<usize>, String)| match places.get(id) {
        Some(place) => place.fault(offset.map(|offset| line_of(place.text, offset)), detail),
        None => Fault { file: id.to_string(), line: None, detail },
    };
    errors.chain(warnings).map(fault).collect()
}

/// Where in its file an error points.
fn offset(error: &dyn Diagnostic) -> Option<usize> {
    error.labels()?.next().map(|label| label.offset())
}
