//! Text tables for a terminal.

/// The first row of a table.
pub fn headings<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

/// Columns as wide as their widest cell. The last cell of a short row may be longer than its column.
pub fn table(rows: &[Vec<String>]) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let mut widths = vec![0; count];
    for row in rows.iter().filter(|row| row.len() == count) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.len().max(*width);
        }
    }
    let cells = |row: &Vec<String>| row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}  ")).collect();
    rows.iter().map(cells).map(|line: String| format!("{}\n", line.trim_end())).collect()
}
