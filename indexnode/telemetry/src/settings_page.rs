//! Writes tables of fields as Markdown, from the JSON schema of a type. Tests use them to write `docs/settings.md` (the
//! settings of a service) and `docs/command-line.md` (the answers of the command line).

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
        // A section for each name.
        let named = definition(root, &target["additionalProperties"]);
        if named["properties"].is_object() {
            rows(root, named, &format!("{key}.NAME."), page);
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

/// A table of all fields below `schema`, those of an object in a list included. Meanings are the fields' doc comments.
pub fn fields(schema: &Value) -> String {
    let mut page = String::from("| field | type | meaning |\n|---|---|---|\n");
    field_rows(schema, schema, "", &mut page);
    page
}

fn field_rows(root: &Value, object: &Value, prefix: &str, page: &mut String) {
    let Some(properties) = object["properties"].as_object() else { return };
    for (name, property) in properties {
        let meaning = property["description"].as_str().unwrap_or_default();
        let meaning = meaning.split_whitespace().collect::<Vec<_>>().join(" ");
        let (kind, optional) = (kind(root, property), if is_optional(property) { " or null" } else { "" });
        page.push_str(&format!("| `{prefix}{name}` | {kind}{optional} | {meaning} |\n"));
        let (below, mark) = match &definition(root, property) {
            list if list["items"].is_object() => (definition(root, &list["items"]), "[]"),
            object => (*object, ""),
        };
        field_rows(root, below, &format!("{prefix}{name}{mark}."), page);
    }
}

/// Whether the property may be null.
fn is_optional(property: &Value) -> bool {
    let is_null = |kind: &Value| kind == "null" || kind["type"] == "null";
    [&property["type"], &property["anyOf"]].iter().any(|kinds| kinds.as_array().is_some_and(|k| k.iter().any(is_null)))
}

/// What a property refers to, or itself.
fn definition<'a>(root: &'a Value, property: &'a Value) -> &'a Value {
    let choice = property["anyOf"].as_array().and_then(|choices| choices.first()).unwrap_or(property);
    let reference = choice["$ref"].as_str().and_then(|path| path.strip_prefix('#'));
    reference.and_then(|path| root.pointer(path)).unwrap_or(property)
}

fn kind(root: &Value, property: &Value) -> String {
    let target = definition(root, property);
    if let Some(choices) = target["oneOf"].as_array() {
        return choices.iter().map(|choice| format!("`{}`", choice["const"])).collect::<Vec<_>>().join(", ");
    }
    match &target["type"] {
        _ if target["items"].is_object() => {
            format!("list of {}", kind_name(&definition(root, &target["items"])["type"]))
        }
        _ if target["additionalProperties"].is_object() => {
            format!("table of {}", kind_name(&definition(root, &target["additionalProperties"])["type"]))
        }
        Value::Array(kinds) => kinds.iter().filter(|kind| *kind != "null").map(kind_name).collect(),
        kind => kind_name(kind),
    }
}

fn kind_name(kind: &Value) -> String {
    kind.as_str().unwrap_or("value").to_owned()
}
