//! Plots of a report as SVG. The background is transparent; the colours are readable on white and on dark.

use anyhow::Result;
use plotters::prelude::*;

const SIZE: (u32, u32) = (720, 400);
const GREY: RGBColor = RGBColor(125, 133, 144);
const COLORS: [RGBColor; 4] =
    [RGBColor(47, 129, 247), RGBColor(45, 164, 78), RGBColor(191, 135, 0), RGBColor(218, 82, 76)];

pub struct Series {
    pub name: &'static str,
    /// `(x, y)`, by x.
    pub points: Vec<(u64, u64)>,
}

/// Draws the series over a logarithmic x axis, labelled with powers of 4 from 1 on. Each label names its unit.
pub fn draw(title: &str, x_label: &str, y_label: &str, series: &[Series]) -> Result<String> {
    let points = || series.iter().flat_map(|series| &series.points);
    let x_max = points().map(|(x, _)| *x).max().unwrap_or(1) as f64;
    let y_max = points().map(|(_, y)| *y).max().unwrap_or(1) as f64;
    let text = |size: u32| TextStyle::from(("sans-serif", size)).color(&GREY);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .caption(title, text(18))
            .margin(12)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..x_max.log(4.0), 0.0..y_max * 1.1)?;
        chart
            .configure_mesh()
            .axis_style(GREY)
            .bold_line_style(GREY.mix(0.3))
            .light_line_style(TRANSPARENT)
            .label_style(text(14))
            .axis_desc_style(text(15))
            .x_desc(x_label)
            .y_desc(y_label)
            .x_labels(x_max.log(4.0) as usize + 1)
            .x_label_formatter(&|x| format!("{:.0}", 4_f64.powf(*x)))
            .y_label_formatter(&|y| crate::report::count(*y as u64))
            .draw()?;
        for (series, color) in series.iter().zip(COLORS) {
            let points = series.points.iter().map(|(x, y)| ((*x as f64).log(4.0), *y as f64));
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2).filled()).point_size(4))?
                .label(series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .label_font(text(14))
            .border_style(TRANSPARENT)
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}
