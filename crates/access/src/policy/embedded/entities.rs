//! The entities of the folder: who and what belongs to which group.

use std::collections::{HashMap, HashSet};

use cedar_policy::{Entities, Entity, EntityUid, Schema};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::Fault;
use super::words::Words;

/// Groups and their members.
#[derive(Debug, Clone)]
pub(super) struct Groups {
    entities: Entities,
    /// Every entity and every group that an entity is in.
    known: HashSet<EntityUid>,
}

impl Groups {
    pub fn none() -> Self {
        Self { entities: Entities::empty(), known: HashSet::new() }
    }

    /// Reads the entity files; all that is wrong with them otherwise.
    pub fn read(files: &[(String, String)], words: &Words) -> Result<Self, Vec<Fault>> {
        let mut faults = Vec::new();
        let mut seen: HashMap<EntityUid, (String, usize)> = HashMap::new();
        let mut entities = Vec::new();
        for (file, text) in files {
            let fault = |line: usize, detail: String| Fault { file: file.clone(), line: Some(line), detail };
            let items: Vec<&RawValue> = match serde_json::from_str(text) {
                Ok(items) => items,
                Err(error) => {
                    faults.push(fault(error.line(), error.to_string()));
                    continue;
                }
            };
            for item in items {
                let line = line_of(text, item.get().as_ptr() as usize - text.as_ptr() as usize);
                match entity(item.get(), &words.members) {
                    Err(detail) => faults.push(fault(line, detail)),
                    Ok(entity) => match seen.insert(entity.uid(), (file.clone(), line)) {
                        Some((file, first)) => {
                            let detail = format!("{} stands in {file}, line {first}, already", entity.uid());
                            faults.push(fault(line, detail));
                        }
                        None => entities.push(entity),
                    },
                }
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let entities = Entities::from_entities(entities, None).map_err(|error| {
            let file = files.iter().map(|(file, _)| file.as_str()).collect::<Vec<_>>().join(", ");
            vec![Fault { file, line: None, detail: error.to_string() }]
        })?;
        let mut known: HashSet<_> = entities.iter().map(Entity::uid).collect();
        for uid in known.clone() {
            known.extend(entities.ancestors(&uid).into_iter().flatten().cloned());
        }
        Ok(Self { entities, known })
    }

    pub fn knows(&self, uid: &EntityUid) -> bool {
        self.known.contains(uid)
    }

    /// Every entity and every group that an entity is in.
    pub fn known(&self) -> impl Iterator<Item = &EntityUid> {
        self.known.iter()
    }

    /// All groups that an entity is in, also through others.
    pub fn of(&self, uid: &EntityUid) -> HashSet<EntityUid> {
        self.entities.ancestors(uid).into_iter().flatten().cloned().collect()
    }

    /// Ids of the entities of a type that are in a group, also through others.
    pub fn members(&self, group: &EntityUid, member: &str) -> Vec<String> {
        let inside = |entity: &&Entity| {
            entity.uid().type_name().basename() == member
                && self.entities.is_ancestor_of(group, &entity.uid())
        };
        self.entities.iter().filter(inside).map(|entity| entity.uid().id().unescaped().to_owned()).collect()
    }
}

fn entity(json: &str, schema: &Schema) -> Result<Entity, String> {
    let entity = Entity::from_json_str(json, Some(schema)).map_err(|error| chain(&error))?;
    // The first call reads, this one compares with the schema.
    Entities::from_entities([entity.clone()], Some(schema)).map_err(|error| chain(&error))?;
    check(&entity.uid())?;
    let parents = Entities::from_entities([entity.clone()], None).map_err(|error| chain(&error))?;
    parents.ancestors(&entity.uid()).into_iter().flatten().try_for_each(check)?;
    Ok(entity)
}

/// Whether an id can be one of its type: a tenant in capitals, for example, would never be met.
pub(super) fn check(uid: &EntityUid) -> Result<(), String> {
    let id = uid.id().unescaped();
    let (fits, expected) = match uid.type_name().basename() {
        "Tenant" => (tenant(id).is_some(), "a UUID in lower case"),
        "Metric" | "Source" => {
            (usage_schemas::validate::is_name(id), "1 to 128 of a-z 0-9 _ . -, first a letter")
        }
        "Caller" => (caller(id), "\"TENANT/SUBJECT\" or \"TENANT\", UUIDs in lower case"),
        "CallerGroup" | "SourceGroup" | "TenantGroup" | "MetricGroup" => {
            let fits = !id.is_empty() && !id.contains(',') && id.trim() == id;
            (fits, "not empty, without commas, without spaces around it")
        }
        _ => (true, ""),
    };
    if fits { Ok(()) } else { Err(format!("the id of {uid} must be {expected}")) }
}

fn caller(id: &str) -> bool {
    match id.split_once('/') {
        None => tenant(id).is_some(),
        Some((owner, subject)) => tenant(owner).is_some() && tenant(subject).is_some(),
    }
}

/// A UUID as it is written everywhere: with hyphens, in lower case, not the nil one.
pub(super) fn tenant(text: &str) -> Option<Uuid> {
    let id = Uuid::try_parse(text).ok().filter(|id| !id.is_nil())?;
    (id.as_hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text).then_some(id)
}

/// The number of the line in which a byte stands, from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    usage_service::error_chain(error)
}
