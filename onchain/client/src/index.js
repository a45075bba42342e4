/** Client of the on-chain program: uploads models, opens runs, drives turns, checks them against a replay. */

export { Client } from './client.js';
export { instructions, readEvent, readRun, refusalName } from './protocol.js';
