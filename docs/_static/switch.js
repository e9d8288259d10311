// Which version of the documents this is, and links to the same page in the others. versions.js says which there are.
{
  const DEVELOPMENT = "dev";
  const { current, versions } = window.fencepostVersions;
  const place = document.getElementById("versions");
  const { page } = place.dataset;
  const label = (name) => (name === DEVELOPMENT ? "development version" : `version ${name}`);

  /** The same page in another version, or its first page if it has none such. */
  const address = ({ name, pages }) => `${document.documentElement.dataset.content_root}../${name}/${pages.includes(page) ? page : "index"}.html`;

  const make = (tag, content, attributes = {}) => {
    const made = document.createElement(tag);
    made.append(...[content].flat());
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };

  const others = versions.filter(({ name }) => name !== current);
  if (!others.length) {
    place.textContent = label(current);
  } else {
    const items = versions.map((each) => make("li", each.name === current ? make("span", label(current), { "aria-current": "true" }) : make("a", label(each.name), { href: address(each) })));
    place.append(make("details", [make("summary", label(current), { title: "Other versions of these documents" }), make("ul", items)]));
    const newest = versions.find(({ name }) => name !== DEVELOPMENT);
    if (newest && newest.name !== current && current !== DEVELOPMENT) {
      place.append(make("p", ["There is a newer one: ", make("a", label(newest.name), { href: address(newest) })]));
    }
  }
}
