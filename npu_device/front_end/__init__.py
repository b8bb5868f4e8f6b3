"""Front end of a device in the native subset: from doorbell and ENQCMD_T to acceptance, and to the end of tickets."""
