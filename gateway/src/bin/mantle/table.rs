//! Text tables for a terminal.

/// Columns as wide as their widest cell; the first row is the headings. The last cell of a short row may be longer than its
/// column.
pub fn table(rows: &[Vec<String>]) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let mut widths = vec![0; count];
    for row in rows.iter().filter(|row| row.len() == count) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.len().max(*width);
        }
    }
    let mut text = String::new();
    for row in rows {
        let line: String = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}  ")).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
