//! The settings of a service as Markdown, from the JSON schema of its configuration type. Tests write `docs/settings.md` by it.

use serde_json::Value;

/// A table of all keys below `schema`, with what a file may leave out. Meanings are the fields' doc comments.
pub fn page(schema: &Value) -> String {
    let mut page = String::from("| key | type | default | meaning |\n|---|---|---|---|\n");
    rows(schema, schema, "", &mut page);
    page
}

fn rows(root: &Value, object: &Value, prefix: &str, page: &mut String) {
    let required = object["required"].as_array().map_or(&[][..], Vec::as_slice);
    let Some(properties) = object["properties"].as_object() else { return };
    for (name, property) in properties {
        let key = format!("{prefix}{name}");
        let target = definition(root, property);
        if target["properties"].is_object() {
            rows(root, target, &format!("{key}."), page);
            continue;
        }
        let default = match &property["default"] {
            Value::Null if required.iter().any(|it| it == name) => "required".to_owned(),
            Value::Null => "none".to_owned(),
            // A number that depends on the machine, in words.
            Value::String(words) if property["type"] == "integer" => words.clone(),
            value => format!("`{value}`"),
        };
        let meaning = property["description"].as_str().unwrap_or_default();
        let meaning = meaning.split_whitespace().collect::<Vec<_>>().join(" ");
        page.push_str(&format!("| `{key}` | {} | {default} | {meaning} |\n", kind(root, property)));
    }
}

/// What a property refers to, or itself.
fn definition<'a>(root: &'a Value, property: &'a Value) -> &'a Value {
    let reference = property["$ref"].as_str().and_then(|path| path.strip_prefix('#'));
    reference.and_then(|path| root.pointer(path)).unwrap_or(property)
}

fn kind(root: &Value, property: &Value) -> String {
    let target = definition(root, property);
    if let Some(choices) = target["oneOf"].as_array() {
        return choices.iter().map(|choice| format!("`{}`", choice["const"])).collect::<Vec<_>>().join(", ");
    }
    match &target["type"] {
        Value::String(kind) if kind == "array" => format!("list of {}", kind_name(&target["items"]["type"])),
        Value::Array(kinds) => kinds.iter().filter(|kind| *kind != "null").map(kind_name).collect(),
        kind => kind_name(kind),
    }
}

fn kind_name(kind: &Value) -> String {
    kind.as_str().unwrap_or("value").to_owned()
}
