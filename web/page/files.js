/** Files in and out: drop zones that are file inputs, and downloads. */

/** The largest file read: a model's weights and its state must fit WebAssembly's 4 GiB together. */
const MAX_BYTES = 2 ** 31;

/**
 * Calls `use` with the files chosen or dropped on `input`'s label.
 * @param {HTMLInputElement} input
 * @param {(files: { name: string, bytes: Uint8Array }[]) => Promise<void>} use
 * @param {(error: Error) => void} fail
 */
export function onFiles(input, use, fail) {
  const zone = input.closest('label');
  const take = async (list) => {
    if (input.disabled || list.length === 0) return;
    try {
      await use(await Promise.all(Array.from(list, read)));
    } catch (error) {
      fail(error);
    }
  };
  input.addEventListener('change', async () => {
    const files = Array.from(input.files);
    input.value = ''; // so that the same file can be chosen again
    await take(files);
  });
  zone.addEventListener('dragover', (event) => {
    event.preventDefault();
    zone.classList.toggle('over', !input.disabled);
  });
  zone.addEventListener('dragleave', () => zone.classList.remove('over'));
  zone.addEventListener('drop', (event) => {
    event.preventDefault();
    zone.classList.remove('over');
    take(event.dataTransfer.files);
  });
}

async function read(file) {
  if (file.size > MAX_BYTES) throw new Error(`${file.name} is too large for a web page: at most 2 GiB`);
  return { name: file.name, bytes: new Uint8Array(await file.arrayBuffer()) };
}

/** Offers `bytes` as a file. */
export function download(name, bytes) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([bytes], { type: 'application/octet-stream' }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// A file dropped beside a zone must not replace the page.
for (const type of ['dragover', 'drop']) addEventListener(type, (event) => event.preventDefault());
