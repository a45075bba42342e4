/** Facit's exact core for JavaScript: the same bits as the native binary, in browsers and in node. */

export { Bytes, CoreError, CoreWasm, EXPORTS, loadCore, simdSupported } from './core.js';
export { Model } from './model.js';
export { CoreSession, TURN_LIMIT } from './session.js';
export { MAX_RECEIPT_BYTES, ReceiptError, TurnDiffers, readReceipt, verifyReceipt } from './receipt.js';
export { temperatureFromText } from './params.js';
export { openSaved, saveSession } from './saved.js';
export { sha256 } from './digest.js';
