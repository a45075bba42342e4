//! Aligned tables: text to the left, numbers to the right.

use std::fmt;

/// Rows of cells under a heading.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table whose first row is the heading. Columns whose heading starts with `>` are aligned
    /// to the right.
    pub fn new<const N: usize>(heading: [&str; N]) -> Self {
        Self { rows: vec![heading.map(String::from).to_vec()] }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(self.rows[0].len(), N);
        self.rows.push(cells.to_vec());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading: Vec<_> = self.rows[0].iter().map(|h| h.trim_start_matches('>')).collect();
        let right: Vec<_> = self.rows[0].iter().map(|h| h.starts_with('>')).collect();
        let cell = |row: usize, column: usize| match row {
            0 => heading[column],
            _ => self.rows[row][column].as_str(),
        };
        let width = |column| {
            (0..self.rows.len()).map(|row| cell(row, column).chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..heading.len()).map(width).collect();
        for row in 0..self.rows.len() {
            let mut line = String::new();
            for (column, width) in widths.iter().enumerate() {
                let text = cell(row, column);
                let gap = " ".repeat(width - text.chars().count());
                let (before, after) =
                    if right[column] { (gap, String::new()) } else { (String::new(), gap) };
                line.push_str(&format!("{before}{text}{after}  "));
            }
            let line = line.trim_end();
            let line = if row == 0 { super::bold(line) } else { line.to_string() };
            f.write_str(&line)?;
            if row + 1 < self.rows.len() {
                f.write_str("\n")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["name", ">bytes"]);
        table.row(["a".into(), "10".into()]);
        table.row(["långt".into(), "1,000,000".into()]);
        let shown = console::strip_ansi_codes(&table.to_string()).into_owned();
        assert_eq!(shown, "name       bytes\na             10\nlångt  1,000,000");
    }
}
