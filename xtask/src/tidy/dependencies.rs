//! The dependency table as data: a new edge between crates is reviewed as architecture.
//! Licences of all third-party crates against `deny.toml`, the list `cargo deny` reads too.

use crate::shell;
use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, MetadataCommand};

/// What each crate may depend on inside the workspace; an edge that is not here is refused.
/// Dev-dependencies are free, except that nothing ships `testkit`.
const EDGES: &[(&str, &[&str])] = &[
    ("facit-fixed", &[]),
    ("facit-numerics", &[]),
    ("facit-models", &["facit-numerics"]),
    ("facit-text", &[]),
    ("facit-store", &[]),
    (
        "facit-engine",
        &["facit-fixed", "facit-numerics", "facit-models", "facit-text", "facit-store"],
    ),
    (
        "facit",
        &[
            "facit-engine",
            "facit-fixed",
            "facit-numerics",
            "facit-models",
            "facit-text",
            "facit-store",
        ],
    ),
    (
        "facit-testkit",
        &[
            "facit-fixed",
            "facit-numerics",
            "facit-models",
            "facit-text",
            "facit-store",
            "facit-engine",
        ],
    ),
    ("xtask", &["facit-testkit"]),
];

/// Crates that may have no third-party dependency at all.
const BARE: &[&str] = &["facit-fixed"];

/// Edges that the table does not list.
pub fn edges() -> Result<Vec<String>> {
    let meta = MetadataCommand::new().no_deps().exec()?;
    let ours: Vec<&str> = meta.packages.iter().map(|p| p.name.as_str()).collect();
    let mut broken = Vec::new();
    for p in &meta.packages {
        let Some((_, allowed)) = EDGES.iter().find(|(name, _)| *name == p.name.as_str()) else {
            broken.push(format!("crate `{}` is not in xtask's dependency table", p.name));
            continue;
        };
        for d in p.dependencies.iter().filter(|d| d.kind != DependencyKind::Development) {
            let inside = ours.contains(&d.name.as_str());
            if inside && !allowed.contains(&d.name.as_str()) {
                broken.push(format!("crate `{}` may not depend on `{}`", p.name, d.name));
            }
            if !inside && BARE.contains(&p.name.as_str()) {
                broken.push(format!("crate `{}` may have no dependency, has `{}`", p.name, d.name));
            }
        }
    }
    Ok(broken)
}

#[derive(serde::Deserialize)]
struct Deny {
    licenses: Licences,
}

#[derive(serde::Deserialize)]
struct Licences {
    allow: Vec<String>,
}

/// Third-party crates none of whose licence choices is allowed.
pub fn licences() -> Result<Vec<String>> {
    let text = std::fs::read_to_string(shell::root().join("deny.toml")).context("deny.toml")?;
    let allow = toml::from_str::<Deny>(&text)?.licenses.allow;
    let meta = MetadataCommand::new().exec()?;
    let third_party = meta.packages.iter().filter(|p| p.source.is_some());
    Ok(third_party
        .filter(|p| !p.license.as_deref().is_some_and(|l| permitted(l, &allow)))
        .map(|p| format!("crate `{}`: licence {:?} is not in deny.toml", p.name, p.license))
        .collect())
}

/// Whether an SPDX expression of `AND`, `OR`, `/` and `WITH` is met by the allowed licences.
fn permitted(expression: &str, allow: &[String]) -> bool {
    let flat = expression.replace(['(', ')'], " ").replace('/', " OR ");
    flat.split(" AND ").all(|all| {
        all.split(" OR ").any(|one| {
            let name = one.trim().split(" WITH ").next().unwrap_or("");
            allow.iter().any(|a| a == name)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_keeps_its_dependency_table() {
        assert_eq!(edges().unwrap(), [""; 0]);
    }

    #[test]
    fn every_third_party_licence_is_permissive() {
        assert_eq!(licences().unwrap(), [""; 0]);
    }

    #[test]
    fn a_copyleft_only_licence_is_refused() {
        let allow = ["MIT".to_owned(), "Apache-2.0".to_owned()];
        assert!(permitted("MIT OR GPL-3.0", &allow));
        assert!(permitted("MIT/Apache-2.0", &allow));
        assert!(permitted("(MIT OR Apache-2.0) AND Apache-2.0 WITH LLVM-exception", &allow));
        assert!(!permitted("MIT AND GPL-3.0", &allow));
        assert!(!permitted("GPL-3.0", &allow));
    }
}
