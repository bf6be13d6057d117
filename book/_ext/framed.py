"""What a cell shows as HTML, such as a slider, as a figure: a frame, a number and a caption.

```{code-cell} ipython3
plots.Slider(...)
```

```{framed}
:name: fig-name

The caption.
```
"""

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective


class Framed(SphinxDirective):
    has_content = True
    option_spec = {"name": directives.unchanged_required}  # noqa: RUF012 (as docutils wants it)

    def run(self):
        figure, told = nodes.figure("", classes=["framed"]), nodes.container()
        self.state.nested_parse(self.content, self.content_offset, told)
        figure += nodes.caption("", "", *told[0].children)
        self.set_source_info(figure)
        self.add_name(figure)
        return [figure]


class FrameOutputs(SphinxTransform):
    """The output of the cell before a caption moves into the caption's figure."""

    default_priority = 300

    def apply(self, **_):
        for figure in list(self.document.findall(nodes.figure)):
            if "framed" not in figure["classes"]:
                continue
            siblings = figure.parent.children
            cell = siblings[siblings.index(figure) - 1]
            output = cell.children[-1]
            figure.parent.remove(figure)
            cell.replace(output, figure)
            figure.insert(0, output)


def setup(app):
    app.add_directive("framed", Framed)
    app.add_transform(FrameOutputs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
